"""One worker per library: a process that times the losses of that library on request."""
