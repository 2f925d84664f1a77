"""What the user describes: the model and the cluster, read from TOML and checked.

Built-in ones lie in `hydraplan/data/{model,cluster}-NAME.toml`; any other name is a path.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hydraplan.errors import InputError

DType = Literal["float64", "float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
ACCUMULATOR_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 4, "float16": 4}
"""Bytes of a partial gradient of keys and values on its way round a ring."""


# Far beyond any machine, and near enough that no product of them leaves float64 or int64.
Count = Annotated[int, Field(ge=1, le=1 << 40)]
MAX_RATE = 1e24
Rate = Annotated[float, Field(ge=1e-6, le=MAX_RATE)]
MAX_SECONDS = 1e6
Seconds = Annotated[float, Field(ge=0.0, le=MAX_SECONDS)]
Rows = Annotated[float, Field(ge=0.0, le=1e12)]


class Config(BaseModel):
    """A frozen model that refuses unknown keys, non-finite numbers and silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


MAX_PARAMETERS = 1 << 50
"""Of a whole model: what is counted in bytes of them stays within 64 bits."""


class ModelShape(Config):
    """A Llama-shaped decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU, untied head."""

    name: str = "custom"
    num_layers: Count
    hidden_size: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    ffn_hidden_size: Count
    vocab_size: Count
    dtype: DType = "bfloat16"

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, rotary embedding needs pairs")
        ends = 2 * self.vocab_size * self.hidden_size
        if (held := self.num_layers * self.layer_parameters + ends) > MAX_PARAMETERS:
            raise ValueError(f"it would hold {held:.3g} weights, at most 2^50 can be planned for")
        return self

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices: q, k, v, o and the three of SwiGLU."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return attention + 3 * self.hidden_size * self.ffn_hidden_size


class Tier(Config):
    """One level of the network, per device and direction."""

    bytes_per_s: Rate
    latency_s: Seconds


class Cluster(Config):
    """Rates of one device and of the links between devices; every figure per device.

    `node` links devices of one node, `fabric` those of one pod, `pod` those of two pods. Without
    `pod` the fabric links all.
    """

    name: str = "custom"
    devices_per_node: Count
    memory_bytes: Count
    memory_bytes_per_s: Rate
    attention_forward_flops_per_s: Rate
    attention_forward_half_rows: Rows
    attention_backward_flops_per_s: Rate
    attention_backward_half_rows: Rows
    attention_call_s: Seconds
    linear_flops_per_s: Rate
    layer_call_s: Seconds
    node: Tier
    fabric: Tier
    devices_per_pod: Count | None = None
    pod: Tier | None = None

    @model_validator(mode="after")
    def _pods_hold_nodes(self) -> Self:
        check_pods(self.devices_per_node, self.devices_per_pod, self.pod)
        return self


def check_pods(devices_per_node: int, devices_per_pod: int | None, link: object) -> None:
    """Raise ValueError unless pods are whole nodes with a link between them, or there are none."""
    if devices_per_pod is None and link is None:
        return
    if devices_per_pod is None or link is None:
        raise ValueError("devices_per_pod and the link between pods go together, one is missing")
    if devices_per_pod % devices_per_node:
        raise ValueError(
            f"devices_per_pod {devices_per_pod} is not a multiple of devices_per_node"
            f" {devices_per_node}"
        )


UNSUPPORTED = {
    "kv_lora_rank": "multi-head latent attention",
    "q_lora_rank": "multi-head latent attention",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "attention_dropout": "dropout in attention",
    "sliding_window": "sliding-window attention",
    "fsdp": "layers sharded by FSDP",
}
"""Keys of model files, as other tools spell them, that mean something hydraplan would do wrong."""

C = TypeVar("C", ModelShape, Cluster)


def load_model(name: str) -> ModelShape:
    """Read the built-in model `name`, or the TOML file at that path."""
    return _load(ModelShape, "model", name)


def load_cluster(name: str) -> Cluster:
    """Read the built-in cluster `name`, or the TOML file at that path."""
    return _load(Cluster, "cluster", name)


def builtin_names(kind: Literal["model", "cluster"]) -> list[str]:
    """Names of the built-in models or clusters, sorted."""
    files = (resources.files("hydraplan") / "data").iterdir()
    names = [f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")]
    return sorted(n.removeprefix(f"{kind}-") for n in names if n.startswith(f"{kind}-"))


def _load(shape: type[C], kind: Literal["model", "cluster"], name: str) -> C:
    builtin = name in builtin_names(kind)
    if builtin:
        text = (resources.files("hydraplan") / "data" / f"{kind}-{name}.toml").read_text()
    else:
        path = Path(name)
        if not path.is_file():
            raise InputError(
                f"{kind} {name!r} is neither built in nor a file",
                f"built in: {', '.join(builtin_names(kind))}",
            )
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{kind} file {name} is not UTF-8 text ({error.reason})") from None
    try:
        values = tomllib.loads(text)
        for key in sorted(values.keys() & UNSUPPORTED.keys()):
            raise InputError(
                f"{kind} file {name}: {key} asks for {UNSUPPORTED[key]}, not supported",
                "take the key out if the model does without it",
            )
        values.setdefault("name", name if builtin else Path(name).stem)
        return shape.model_validate(values)
    except RecursionError:
        raise InputError(f"{kind} file {name} is nested too deeply") from None
    except ValidationError as error:
        raise InputError(
            f"{kind} file {name}: {validation_text(error)}",
            f"a {kind} file holds {', '.join(shape.model_fields)}",
        ) from None
    except ValueError as error:  # of TOML, or a number of thousands of digits
        raise InputError(f"{kind} file {name} is not TOML: {error}") from None


def validation_text(error: ValidationError) -> str:
    """First complaint of pydantic on one line: which field, what is wrong, the value."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "file"
    value = "" if isinstance(first["input"], dict) else f" (value {first['input']!r:.60})"
    more = "" if error.error_count() == 1 else f"; {error.error_count() - 1} more"
    return f"{where}: {complaint(error)}{value}{more}"


def complaint(error: ValidationError) -> str:
    """What the first value that pydantic refuses must be, without its name."""
    first = error.errors()[0]
    said = _COMPLAINTS.get(first["type"], "")
    text = said.format(**first.get("ctx", {})) if said else first["msg"].replace(*_THEIRS)
    return text.removeprefix("Value error, ").removesuffix(".")


_COMPLAINTS = {
    "missing": "is missing",
    "extra_forbidden": "is no key that is known here",
    "greater_than_equal": "must be at least {ge:.15g}",
    "greater_than": "must be above {gt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
    "less_than": "must be below {lt:.15g}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "json_invalid": "is no JSON: {error}",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("string_type", "string_sub_type"), "must be text in quotes"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("model_type", "dict_type"), "must be a section with keys of its own"),
}
"""Pydantic's kinds of complaints in our words, which name the limit."""

_THEIRS = "Input should be", "must be"
"""What it says of rarer ones."""
