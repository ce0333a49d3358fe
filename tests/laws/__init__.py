"""The laws that every loss obeys, one module per law, all on the same list of cases."""
