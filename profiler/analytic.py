"""Analytic profile: the constants of a cluster file as fitted coefficients, nothing timed.

Each constant of `hydraplan.config.Cluster` becomes the coefficient of the same meaning, so
that planning works for machines nobody here has. The header says `analytic`, holds no
measurement and no version but ours, so the same cluster and model give the same bytes.

It does not look at the model's dtype: the rates of the built-in clusters are those of
bfloat16, and a float32 model on them is costed too fast.
"""

from hydraplan.config import Cluster, ModelShape, Tier
from hydraplan.costfit import CostFit, LinkFit, RateFit
from hydraplan.files.profilefile import ProfileHeader
from hydraplan.version import __version__


def analytic_fit(cluster: Cluster) -> CostFit:
    """Coefficients of one device and its links, taken from the constants of `cluster`.

    All three passes of a layer's linear part run at one rate, and all-to-all and
    point-to-point share the rate of their tier.

    Source: our choice. CUDA varlen kernels take all packed sequences in one call.
    """
    linear = RateFit(call_s=cluster.layer_call_s, flops_per_s=cluster.linear_flops_per_s)
    fields: dict[str, object] = {
        "attention_forward": RateFit(
            call_s=cluster.attention_call_s,
            flops_per_s=cluster.attention_forward_flops_per_s,
            half_rows=cluster.attention_forward_half_rows,
        ),
        "attention_backward": RateFit(
            call_s=cluster.attention_call_s,
            flops_per_s=cluster.attention_backward_flops_per_s,
            half_rows=cluster.attention_backward_half_rows,
        ),
        "linear_forward": linear,
        "linear_input": linear,
        "linear_weight": linear,
        "memory_bytes_per_s": cluster.memory_bytes_per_s,
        "segments_in_one_call": True,
    }
    return CostFit.model_validate(fields | link_fits(cluster))


def link_fits(cluster: Cluster) -> dict[str, object]:
    """What the `CostFit` of a cluster says of its links, by field."""
    node, fabric = _link_fit(cluster.node), _link_fit(cluster.fabric)
    return {
        "node_all_to_all": node,
        "node_p2p": node,
        "fabric_all_to_all": fabric,
        "fabric_p2p": fabric,
        "pod_p2p": None if cluster.pod is None else _link_fit(cluster.pod),
        "devices_per_node": cluster.devices_per_node,
        "devices_per_pod": cluster.devices_per_pod,
    }


def _link_fit(tier: Tier) -> LinkFit:
    return LinkFit(bytes_per_s=tier.bytes_per_s, latency_s=tier.latency_s)


def analytic_header(cluster: Cluster, model: ModelShape) -> ProfileHeader:
    """Footer of the analytic profile of `model` on `cluster`."""
    return ProfileHeader(
        tool_version=__version__,
        mode="analytic",
        device=f"analytic {cluster.name}",
        versions={"hydraplan": __version__},
        model=model,
        cluster=cluster,
        fit=analytic_fit(cluster),
    )
