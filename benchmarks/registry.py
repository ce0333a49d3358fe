"""What is compared with what: one row per loss, one formula per library.

An expression is evaluated in the library's worker, where the names it uses are imported. The
libraries scale their losses differently, so ``scale`` turns a peer's value into ours:

    our value = scale × peer's value,  with the names batch, width (the padded list size) and ln2.

We sum over the pairs (or documents) of a list and take the mean over the lists; lambda losses use
the logarithm to base 2. ``differs`` says in words why no factor makes the definitions equal.
``python -m benchmarks.registry`` prints the table as Markdown.
"""

import math
from dataclasses import dataclass, field

# TF-Ranking and keras-rs take the mean over batch × padded width instead of over the lists.
TIMES_WIDTH = "width"
# Rax takes the mean over all pairs of the batch; we have it sum them and divide by the lists.
RAX_SUM = ", reduce_fn=jnp.sum"
PER_LIST = "1 / batch"
# The two above cancel TF-Ranking's lambda weights, which are multiplied by the padded width.
NATURAL_LOGARITHM = "1 / ln2"
# Rax multiplies its lambda weights by the padded width too, and sums over the batch.
RAX_LAMBDA = "1 / (batch * width * ln2)"

LIBRARIES = {
    "ours": "tfrankloss",
    "ours_jax": "tfrankloss on JAX",
    "tensorflow_ranking": "TF-Ranking",
    "keras_rs": "keras-rs",
    "rax": "Rax",
    "rax_newest_jax": "Rax, newest JAX",
    "pytorch": "PyTorch",
}
# This library, on the two backends of Keras that it runs on.
OURS = ("ours", "ours_jax")
# These compile a step with XLA where they are asked to; JAX always does, and PyTorch never.
ON_TENSORFLOW = ("ours", "tensorflow_ranking", "keras_rs")


@dataclass(frozen=True)
class Formula:
    """How one library computes a loss, and how its value compares with ours."""

    expression: str
    scale: str = "1"
    differs: str = ""

    def scale_for(self, batch: int, width: int) -> float:
        """The factor that turns the library's value into ours."""
        return float(eval(self.scale, {"batch": batch, "width": width, "ln2": math.log(2.0)}))


@dataclass(frozen=True)
class Loss:
    """One row: our formula, the peers' formulas by the names of their workers, and the data."""

    title: str
    ours: Formula
    peers: dict[str, Formula] = field(default_factory=dict)
    labels: str = "graded"
    outputs: int = 0
    random: bool = False

    def has(self, library: str) -> bool:
        """Whether a library offers this loss."""
        return library in OURS or _family(library) in self.peers

    def formula(self, library: str) -> Formula:
        """The formula of a library that offers this loss."""
        return self.ours if library in OURS else self.peers[_family(library)]


def _family(library: str) -> str:
    """Both environments of Rax share its formulas."""
    return "rax" if library == "rax_newest_jax" else library


def _row(
    title: str,
    ours: str,
    *,
    tensorflow_ranking: Formula | None = None,
    keras_rs: Formula | None = None,
    rax: Formula | None = None,
    pytorch: Formula | None = None,
    labels: str = "graded",
    outputs: int = 0,
    random: bool = False,
) -> Loss:
    """A row written with one keyword per peer; a peer without the loss is left out."""
    peers = {
        "tensorflow_ranking": tensorflow_ranking,
        "keras_rs": keras_rs,
        "rax": rax,
        "pytorch": pytorch,
    }
    present = {name: formula for name, formula in peers.items() if formula is not None}
    return Loss(title, Formula(f"losses.{ours}"), present, labels, outputs, random)


def _tensorflow_ranking(loss: str, scale: str = "1", differs: str = "") -> Formula:
    return Formula(f"tfr.keras.losses.{loss}", scale, differs)


def _tensorflow_ranking_lambda(weight: str) -> Formula:
    expression = f"PairwiseLogisticLoss(lambda_weight=tfr.keras.losses.{weight})"
    return _tensorflow_ranking(expression, NATURAL_LOGARITHM)


def _rax_lambda(weight: str) -> Formula:
    expression = (
        f"partial(rax.pairwise_logistic_loss{RAX_SUM}, lambdaweight_fn=partial(rax.{weight}))"
    )
    return Formula(expression, RAX_LAMBDA)


def _keras_rs(loss: str, scale: str = "1") -> Formula:
    return Formula(f"keras_rs.losses.{loss}", scale)


def _rax_sum(loss: str) -> Formula:
    return Formula(f"partial(rax.{loss}{RAX_SUM})", PER_LIST)


LOSSES = {
    # --- pairwise
    "pairwise_logistic": _row(
        "pairwise logistic",
        "PairwiseLogisticLoss()",
        tensorflow_ranking=_tensorflow_ranking("PairwiseLogisticLoss()", TIMES_WIDTH),
        keras_rs=_keras_rs("PairwiseLogisticLoss()", TIMES_WIDTH),
        rax=_rax_sum("pairwise_logistic_loss"),
        pytorch=Formula("pairwise_logistic"),
    ),
    "pairwise_hinge": _row(
        "pairwise hinge",
        "PairwiseHingeLoss()",
        tensorflow_ranking=_tensorflow_ranking("PairwiseHingeLoss()", TIMES_WIDTH),
        keras_rs=_keras_rs("PairwiseHingeLoss()", TIMES_WIDTH),
        rax=_rax_sum("pairwise_hinge_loss"),
        pytorch=Formula("pairwise_hinge"),
    ),
    "pairwise_soft_zero_one": _row(
        "pairwise soft zero-one",
        "PairwiseSoftZeroOneLoss()",
        tensorflow_ranking=_tensorflow_ranking("PairwiseSoftZeroOneLoss()", TIMES_WIDTH),
        keras_rs=_keras_rs("PairwiseSoftZeroOneLoss()", TIMES_WIDTH),
        rax=_rax_sum("pairwise_soft_zero_one_loss"),
        pytorch=Formula("pairwise_soft_zero_one"),
    ),
    "pairwise_squared": _row(
        "pairwise squared",
        "PairwiseSquaredLoss()",
        tensorflow_ranking=_tensorflow_ranking("PairwiseMSELoss()", TIMES_WIDTH),
        keras_rs=_keras_rs("PairwiseMeanSquaredError()", TIMES_WIDTH),
        rax=_rax_sum("pairwise_mse_loss"),
        pytorch=Formula("pairwise_squared"),
    ),
    # --- lambda
    "ndcg_loss2": _row(
        "NDCG-Loss2",
        "NDCGLoss2()",
        tensorflow_ranking=_tensorflow_ranking_lambda("NDCGLambdaWeightV2()"),
        rax=_rax_lambda("dcg2_lambdaweight, normalize=True"),
        pytorch=Formula("ndcg_loss2"),
    ),
    "ndcg_loss2_at_5": _row(
        "NDCG-Loss2@5",
        "NDCGLoss2(topn=5)",
        tensorflow_ranking=_tensorflow_ranking_lambda("NDCGLambdaWeightV2(topn=5)"),
        rax=_rax_lambda("dcg2_lambdaweight, normalize=True, topn=5"),
        pytorch=Formula("partial(ndcg_loss2, topn=5)"),
    ),
    "ndcg_loss2_truncated_at_5": _row(
        "NDCG-Loss2@5, truncated",
        'NDCGLoss2(topn=5, cutoff="truncated")',
        tensorflow_ranking=_tensorflow_ranking_lambda("NDCGLambdaWeight(topn=5)"),
        pytorch=Formula("partial(ndcg_loss2, topn=5, truncated=True)"),
    ),
    "lambdarank": _row(
        "LambdaRank",
        "LambdaRankLoss()",
        tensorflow_ranking=_tensorflow_ranking_lambda("NDCGLambdaWeight(smooth_fraction=1.0)"),
        rax=_rax_lambda("dcg_lambdaweight, normalize=True"),
        pytorch=Formula("lambdarank"),
    ),
    "lambdarank_at_5": _row(
        "LambdaRank@5",
        "LambdaRankLoss(topn=5)",
        tensorflow_ranking=_tensorflow_ranking_lambda(
            "NDCGLambdaWeight(topn=5, smooth_fraction=1.0)"
        ),
        rax=_rax_lambda("dcg_lambdaweight, normalize=True, topn=5"),
        pytorch=Formula("partial(lambdarank, topn=5)"),
    ),
    "arp_loss2": _row(
        "ARP-Loss2",
        "ARPLoss2()",
        tensorflow_ranking=_tensorflow_ranking(
            "PairwiseLogisticLoss(lambda_weight=tfr.keras.losses.LabelDiffLambdaWeight())",
            "width / ln2",
        ),
        rax=Formula(
            f"partial(rax.pairwise_logistic_loss{RAX_SUM},"
            " lambdaweight_fn=rax.labeldiff_lambdaweight)",
            "1 / (batch * ln2)",
        ),
        pytorch=Formula("arp_loss2"),
    ),
    "lambdarank_precision_at_5": _row(
        "LambdaRank for Precision@5",
        'LambdaRankLoss(metric="precision", topn=5)',
        tensorflow_ranking=_tensorflow_ranking(
            "PairwiseLogisticLoss(lambda_weight=tfr.keras.losses.PrecisionLambdaWeight(topn=5))",
            "width / (5 * ln2)",
        ),
        pytorch=Formula("partial(lambdarank_precision, topn=5)"),
        labels="binary",
    ),
    # --- listwise
    "softmax": _row(
        "softmax",
        "SoftmaxLoss()",
        tensorflow_ranking=_tensorflow_ranking("SoftmaxLoss()"),
        rax=Formula("rax.softmax_loss"),
        pytorch=Formula("softmax"),
    ),
    "listnet": _row(
        "ListNet, y / Σy",
        'ListNetLoss(label_distribution="normalized")',
        tensorflow_ranking=Formula("with_normalized_labels(tfr.keras.losses.SoftmaxLoss())"),
        rax=Formula("partial(rax.softmax_loss, label_fn=rax.utils.normalize_probabilities)"),
        pytorch=Formula("listnet"),
    ),
    "listmle": _row(
        "ListMLE",
        "ListMLELoss()",
        tensorflow_ranking=_tensorflow_ranking("ListMLELoss()"),
        keras_rs=_keras_rs("ListMLELoss()"),
        rax=Formula("rax.listmle_loss"),
        pytorch=Formula("listmle"),
        labels="untied",
    ),
    "unique_softmax": _row(
        "unique softmax",
        "UniqueSoftmaxLoss()",
        tensorflow_ranking=_tensorflow_ranking("UniqueSoftmaxLoss()"),
        rax=Formula("rax.unique_softmax_loss"),
        pytorch=Formula("unique_softmax"),
    ),
    "poly1_softmax": _row(
        "poly1 softmax",
        "Poly1SoftmaxLoss()",
        tensorflow_ranking=Formula(
            'outside_keras(tfr.losses.make_loss_fn("poly_one_softmax_loss"))',
            differs="multiplies the epsilon term by the sum of the labels",
        ),
        rax=Formula("rax.poly1_softmax_loss"),
        pytorch=Formula("poly1_softmax"),
    ),
    "calibrated_softmax": _row(
        "calibrated softmax",
        "CalibratedSoftmaxLoss(virtual_label=1.0)",
        tensorflow_ranking=_tensorflow_ranking("CalibratedSoftmaxLoss(virtual_label=1.0)"),
        pytorch=Formula("calibrated_softmax"),
    ),
    # --- smooth metrics
    "approx_ndcg": _row(
        "ApproxNDCG",
        "ApproxNDCGLoss(temperature=0.1)",
        tensorflow_ranking=_tensorflow_ranking("ApproxNDCGLoss(temperature=0.1)"),
        rax=Formula("rax.approx_t12n(rax.ndcg_metric, temperature=0.1)"),
        pytorch=Formula("approx_ndcg"),
    ),
    "gumbel_approx_ndcg": _row(
        "GumbelApproxNDCG, 8 samples",
        "GumbelApproxNDCGLoss(samples=8, temperature=0.1, seed=0)",
        tensorflow_ranking=_tensorflow_ranking(
            "GumbelApproxNDCGLoss(sample_size=8, temperature=0.1)"
        ),
        rax=Formula(
            "rax.gumbel_t12n(rax.approx_t12n(rax.ndcg_metric, temperature=0.1), samples=8)"
        ),
        pytorch=Formula("partial(gumbel_approx_ndcg, samples=8)"),
        random=True,
    ),
    "approx_dcg": _row(
        "ApproxDCG",
        "ApproxDCGLoss(temperature=0.1)",
        rax=Formula("rax.approx_t12n(rax.dcg_metric, temperature=0.1)"),
        pytorch=Formula("approx_dcg"),
    ),
    "approx_map": _row(
        "ApproxMAP",
        "ApproxMAPLoss(temperature=0.1)",
        rax=Formula(
            "rax.approx_t12n(rax.ap_metric, temperature=0.1)",
            differs="counts the relevant documents above with a hard comparison",
        ),
        pytorch=Formula("approx_map"),
    ),
    "approx_mrr": _row(
        "ApproxMRR",
        "ApproxMRRLoss(temperature=0.1)",
        tensorflow_ranking=_tensorflow_ranking(
            "ApproxMRRLoss(temperature=0.1)",
            differs="mean over the relevant documents instead of the best of them",
        ),
        rax=Formula("rax.approx_t12n(rax.mrr_metric, temperature=0.1)"),
        pytorch=Formula("approx_mrr"),
    ),
    # --- pointwise
    "pointwise_sigmoid": _row(
        "pointwise sigmoid",
        "PointwiseSigmoidLoss()",
        tensorflow_ranking=_tensorflow_ranking("SigmoidCrossEntropyLoss()", TIMES_WIDTH),
        rax=_rax_sum("pointwise_sigmoid_loss"),
        pytorch=Formula("pointwise_sigmoid"),
        labels="binary",
    ),
    "pointwise_squared": _row(
        "pointwise squared",
        "PointwiseSquaredLoss()",
        tensorflow_ranking=_tensorflow_ranking("MeanSquaredLoss()", TIMES_WIDTH),
        rax=_rax_sum("pointwise_mse_loss"),
        pytorch=Formula("pointwise_squared"),
    ),
    "ordinal": _row(
        "ordinal, grades 0 to 4",
        "OrdinalLoss(num_grades=4)",
        tensorflow_ranking=_tensorflow_ranking("OrdinalLoss(ordinal_size=4)", TIMES_WIDTH),
        pytorch=Formula("ordinal"),
        outputs=4,
    ),
    # --- what each library takes to launch a step and to fetch its results
    "empty_step": Loss(
        "nothing: the sum of the scores",
        Formula("lambda labels, scores: ops.sum(scores)"),
        {
            "tensorflow_ranking": Formula("lambda labels, scores: tf.reduce_sum(scores)"),
            "keras_rs": Formula("lambda labels, scores: ops.sum(scores)"),
            "rax": Formula("lambda scores, labels, where=None: jnp.sum(scores)"),
            "pytorch": Formula("lambda scores, labels: scores.sum()"),
        },
    ),
    # --- losses that no peer has, for the growth table
    "ranknet": _row("RankNet", "RankNetLoss()"),
    "pairwise_exponential": _row("pairwise exponential", "PairwiseExponentialLoss()"),
    "arp_loss1": _row("ARP-Loss1", "ARPLoss1()"),
    "ndcg_loss1": _row("NDCG-Loss1", "NDCGLoss1()"),
    "ndcg_loss2_at_10": _row("NDCG-Loss2@10", "NDCGLoss2(topn=10)"),
    "ndcg_loss2_plus_plus": _row("NDCG-Loss2++", "NDCGLoss2PlusPlus()"),
    "xe_ndcg": _row("XE-NDCG", "XENDCGLoss()", random=True),
    "position_aware_listmle": _row(
        "position-aware ListMLE", "PositionAwareListMLELoss()", labels="untied"
    ),
    "soft_ndcg": _row("SoftNDCG", "SoftNDCGLoss()"),
}


# The formulas of ``workers.jax_formulas``, which ``benchmarks.accelerators`` compiles.
JAX_FORMULAS = {
    "pairwise_logistic": "pairwise_logistic",
    "pairwise_hinge": "pairwise_hinge",
    "lambdarank": "lambdarank",
    "ndcg_loss2_at_5": "partial(ndcg_loss2, topn=5)",
}


def rax_as_it_stands(loss: Loss) -> str:
    """Rax's expression with the reduction that is its default."""
    return loss.formula("rax").expression.replace(RAX_SUM, "")


def markdown() -> str:
    """The registry as a table: loss, library, expression, scale and remark."""
    lines = ["| loss | library | expression | our value = | remark |", "|---|---|---|---|---|"]
    for loss in LOSSES.values():
        if not loss.peers:
            continue
        lines.append(f"| **{loss.title}** | tfrankloss | `{loss.ours.expression}` | | |")
        for library, formula in loss.peers.items():
            factor = "its value" if formula.scale == "1" else f"`{formula.scale}` × its value"
            remark = f"differs: {formula.differs}" if formula.differs else ""
            lines.append(
                f"| | {LIBRARIES[library]} | `{formula.expression}` | "
                f"{'' if formula.differs else factor} | {remark} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
