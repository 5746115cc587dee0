"""Matching of a model's variables with a file's arrays, and every problem of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from keras_vit.config import ResNetConfig, ViTConfig, field_value
from keras_vit.errors import listed
from keras_vit.families.rules import Rule
from keras_vit.resize import BIAS_TABLE, num_biases
from keras_vit.weights.array_file import FLOATS
from keras_vit.weights.checkpoint import Checkpoint, PositionTable, position_rows
from keras_vit.weights.sizes import size

if TYPE_CHECKING:
    import keras

    from keras_vit.runtime.model import Model

POSITIONS = "position_embedding/embedding"
PATCHES = "patch_encoder/projection/kernel"
HEADS = ("head", "head_distillation", "pre_logits")
_MAX_LISTED = 30
Shape = tuple[int, ...]


class Problem(NamedTuple):
    """A mismatch of a model and a checkpoint.

    Args:
        kind: `"missing"`, `"unused"`, `"misshapen"`, `"ambiguous"`, `"wrong type"`,
            `"other heads"` or `"other positions"`.
        text: What was expected and what the file has.
        names: Names in the file of the arrays that this explains, which are not unused then.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Match(NamedTuple):
    """The arrays of a file for one variable.

    Args:
        variable: The variable.
        rule: How it is made from the arrays.
        keys: Plain names of the arrays.
        shapes: Shapes that the arrays are brought to.
    """

    variable: keras.Variable
    rule: Rule
    keys: tuple[str, ...]
    shapes: list[Shape]


@dataclasses.dataclass
class Plan:
    """The arrays to read for each variable, and every problem.

    Args:
        model: The model.
        checkpoint: The open file.
        grid: Patches along (height, width) of the file's positions that the caller states.
        resize_patches: Whether a patch kernel of another size is resized.
        position_resize: Method of `resize_positions`; `None` takes that of the file's project.
        parts: Arrays by path of the variable.
        fresh: Variables that start at their initial value, by path.
        resized: What is resized or adapted, by path of the variable.
        left_out: Names in the file of heads that the model does not take.
        problems: Every mismatch.
        table: How the file's position table is split.
        constants: Names in the file of arrays that follow from the configuration.
    """

    model: Model
    checkpoint: Checkpoint
    grid: tuple[int, int] | None = None
    resize_patches: bool = False
    position_resize: str | None = None
    parts: dict[str, Match] = dataclasses.field(default_factory=dict)
    fresh: dict[str, keras.Variable] = dataclasses.field(default_factory=dict)
    resized: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: list[str] = dataclasses.field(default_factory=list)
    problems: list[Problem] = dataclasses.field(default_factory=list)
    table: PositionTable | None = None
    constants: set[str] = dataclasses.field(default_factory=set)

    @property
    def config(self) -> ViTConfig | ResNetConfig:
        """The model's configuration."""
        return config_of(self.model)

    @property
    def resize_method(self) -> str:
        """Method of `resize_positions`."""
        layout = self.checkpoint.layout
        flexible = layout.resize_flexible if self.resize_patches else None
        stated = self.checkpoint.options.get("position_resize", layout.resize)
        return self.position_resize or flexible or stated

    @property
    def patch_method(self) -> str:
        """Method of `resize_patch_kernel`."""
        stated = self.checkpoint.options.get("position_resize")
        # timm resizes both by one method, in FlexiViT another than elsewhere.
        return "bilinear" if stated == "bilinear" else self.checkpoint.layout.resize_patches

    def refuse(self, kind: str, text: str, *names: str) -> None:
        """Adds a `Problem`."""
        self.problems.append(Problem(kind, text, names))


def compare(plan: Plan) -> None:
    """Compares the model of a plan with its checkpoint, and adds what it finds to the plan."""
    _match(plan)
    _check_constants(plan)
    _check_rest(plan)
    _check_heads(plan)


def config_of(model: Model) -> ViTConfig | ResNetConfig:
    """Returns the configuration of a model.

    Raises:
        ValueError: If it has none.
    """
    if getattr(model, "config", None) is None:
        raise ValueError(
            f"The model {model.name!r} has no `config`. Pass a model of `create_model`, "
            "`build_vit` or `build_resnet`; load or save its weights before you build on it."
        )
    return cast(ViTConfig | ResNetConfig, model.config)


def model_variables(model: Model) -> Iterator[keras.Variable]:
    """Yields the variables that a checkpoint holds: all but the states of random generators."""
    for variable in model.weights:
        if "seed_generator" in variable.path:
            continue
        if "int" in str(variable.dtype):
            raise ValueError(
                f"The kernels of {model.name!r} were quantised by Keras ({variable.path} is "
                f"{variable.dtype}), and checkpoints hold floats. Load weights before "
                "`quantize`; `keras_vit.models.dequantize(model)` has float kernels to save, and "
                "`model.save` writes a `.keras` file of the quantised model."
            )
        yield variable


def _match(plan: Plan) -> None:
    """Finds the arrays of every variable, and compares shapes."""
    checkpoint, layout = plan.checkpoint, plan.checkpoint.layout
    skip_head = _head_starts_fresh(plan)
    # transformers takes zeros for a bias that the head lacks.
    lacks_bias = layout.project == "transformers" and checkpoint.find("head/bias") is None
    pre_logits = size(checkpoint.find("pre_logits/bias"), -1)
    for variable in model_variables(plan.model):
        path = variable.path
        found = layout.find(path, plan.config, checkpoint.entries)
        fits = path.startswith("pre_logits/") and variable.shape[-1] == pre_logits
        is_new = path.split("/")[0] in HEADS and skip_head and not fits
        if is_new or (path == "head/bias" and lacks_bias):
            plan.fresh[path] = variable
        elif found is None:
            plan.refuse("missing", f"the {layout.name} layout has no array for {path}")
        else:
            _match_one(plan, variable, *found)


def _match_one(plan: Plan, variable: keras.Variable, rule: Rule, keys: tuple[str, ...]) -> None:
    path, entries = variable.path, plan.checkpoint.entries
    missing = [key for key in keys if key not in entries]
    if missing:
        names = ", ".join(repr(plan.checkpoint.original(key)) for key in missing)
        text = f"{names}, for {path} {tuple(variable.shape)}"
        plan.refuse("missing", text, *map(plan.checkpoint.original, keys))
        return
    shapes = rule.file_shapes(tuple(variable.shape), field_value(plan.config, "num_heads", 1))
    if path == POSITIONS or path.endswith(BIAS_TABLE):
        shapes = [_match_positions(plan, variable, keys[0], shapes[0])]
    if path == PATCHES:
        shapes = [_match_patches(plan, variable, rule, entries[keys[0]].shape, shapes[0])]
    for key, shape in zip(keys, shapes, strict=True):
        _check_entry(plan, path, key, shape)
    plan.parts[path] = Match(variable, rule, keys, shapes)


def _check_entry(plan: Plan, path: str, key: str, shape: Shape) -> None:
    entry, name = plan.checkpoint.entries[key], plan.checkpoint.original(key)
    if entry.dtype not in FLOATS:
        plan.refuse("wrong type", f"{name!r} holds {entry.dtype} values, not floats", name)
    if _squeezed(entry.shape) != _squeezed(shape):
        text = f"{name!r} is {entry.shape}, but {path} needs {tuple(shape)}"
        plan.refuse("misshapen", text, name)


def _squeezed(shape: Shape) -> Shape:
    """The shape without axes of length 1, in which files differ."""
    return tuple(size for size in shape if size != 1)


def _match_positions(plan: Plan, variable: keras.Variable, key: str, expected: Shape) -> Shape:
    """Decides how a table of positions is split or resized; returns the shape it should have."""
    config, checkpoint = cast(ViTConfig, plan.config), plan.checkpoint  # a ResNet has no positions
    entry, name = checkpoint.entries[key], checkpoint.original(key)
    rows = position_rows(entry)
    grid = _find_grid(plan, key, rows, config.grid)
    if grid is None:
        return entry.shape
    ours, theirs = (f"{height} x {width}" for height, width in (config.grid, grid))
    if variable.path.endswith(BIAS_TABLE):
        if grid[0] != grid[1] and checkpoint.layout.square_grids:
            plan.refuse(
                "other positions",
                f"{name!r} is of a grid of {grid}, whose rows and columns "
                f"{checkpoint.layout.project} exchanges: it computes no distances there",
            )
        if grid == config.grid:
            return expected
        how = f"distances in {theirs} to {ours} patches ({plan.resize_method})"
        plan.resized[variable.path] = how
        return num_biases(grid, config.class_token), expected[-1]
    if grid != config.grid and config.takes_patches:
        plan.refuse(
            "misshapen",
            f"the {rows} positions of {name!r} are a grid of {theirs}, the model's table {ours}; "
            "it is resampled for each image, so leave input_shape and image_size out",
        )
    elif grid != config.grid:
        plan.resized[POSITIONS] = f"{theirs} to {ours} positions ({plan.resize_method})"
    if len(expected) == 4:
        return (1, *grid, variable.shape[-1])
    return (*expected[:-2], rows, variable.shape[-1])


def _find_grid(
    plan: Plan, key: str, rows: int, model_grid: tuple[int, int]
) -> tuple[int, int] | None:
    """The grid of a table of positions, which the plan keeps; `None` if it is not clear."""
    name = plan.checkpoint.original(key)
    tables = plan.checkpoint.position_tables(plan.grid, model_grid)
    if len(tables) == 1:
        plan.table = tables[0]
        return plan.table.grid
    if tables:
        ways = " or ".join(
            f"{num_tokens} rows for tokens and a grid of {grid[0]} x {grid[1]}"
            for num_tokens, grid in tables
        )
        advice = "pass grid=(rows, columns) to load_weights"
        plan.refuse("ambiguous", f"the {rows} rows of {name!r} can be {ways}; {advice}", name)
        return None
    tokens = " or ".join(map(str, sorted(plan.checkpoint.possible_token_rows())))
    wanted = plan.grid or model_grid
    plan.refuse(
        "misshapen",
        f"the {rows} rows of {name!r}, {tokens} of them for tokens, are no grid of "
        f"{wanted[0]} x {wanted[1]}{'' if plan.grid else ' and no square'}; pass the file's "
        "grid=(rows, columns) to load_weights",
        name,
    )
    return None


def _match_patches(
    plan: Plan, variable: keras.Variable, rule: Rule, shape: Shape, expected: Shape
) -> Shape:
    """Notes how the patch kernel adapts; returns the shape that the file should have."""
    if len(shape) != 4 or shape == tuple(expected):
        return expected
    ours = rule.to_ours([np.broadcast_to(np.float32(0), shape)]).shape
    wanted = tuple(variable.shape)
    if ours[-1] != wanted[-1] or getattr(plan.config, "stem", None) is not None:
        return expected
    changes = []
    if ours[:2] != wanted[:2]:
        if not plan.resize_patches:
            return expected
        changes.append(
            f"{ours[0]} x {ours[1]} to {wanted[0]} x {wanted[1]} pixels (pseudo-inverse, "
            f"{plan.patch_method})"
        )
    if ours[2] != wanted[2]:
        changes.append(f"{ours[2]} to {wanted[2]} channels")
    plan.resized[PATCHES] = ", ".join(changes)
    return shape


def _head_starts_fresh(plan: Plan) -> bool:
    """Whether the model's head has other classes than the file's, or the file has none."""
    return (plan.checkpoint.classes or 0) != plan.config.classes


def _check_constants(plan: Plan) -> None:
    """Compares arrays of the file that follow from the configuration."""
    layout = plan.checkpoint.layout
    for path, value in layout.constants(plan.config).items():
        found = layout.find(path, plan.config)
        assert found is not None
        (key,) = found[1]
        name, entry = plan.checkpoint.original(key), plan.checkpoint.entries.get(key)
        if entry is None:
            plan.refuse("missing", f"{name!r} {value.shape}")
            continue
        plan.constants.add(key)
        same = entry.shape == value.shape  # within the rounding of 16 bits
        if not same or not np.allclose(plan.checkpoint.read(key), value, rtol=1e-2, atol=1e-6):
            text = f"{name!r} has other frequencies than its project publishes"
            plan.refuse("other positions", text, name)


def _check_rest(plan: Plan) -> None:
    """Reports unused arrays, except heads that are replaced and arrays of other problems."""
    used = {key for match in plan.parts.values() for key in match.keys} | plan.constants
    explained = {name for problem in plan.problems for name in problem.names}
    for key, entry in plan.checkpoint.entries.items():
        name = plan.checkpoint.original(key)
        if key in used:
            continue
        if _may_be_left_out(plan, key):
            plan.left_out.append(name)
        elif name not in explained:
            explained.add(name)  # a stack of blocks is reported once
            text = f"{name!r} {entry.shape}, for which the model has no variable"
            plan.refuse("unused", text, name)


def _check_heads(plan: Plan) -> None:
    """Compares the number of attention heads, which no shape of timm and transformers tells."""
    stated = plan.checkpoint.options.get("num_heads")
    ours = field_value(plan.config, "num_heads", None)
    if plan.checkpoint.file.kind != "npz" and stated and ours and stated != ours:
        plan.refuse(
            "other heads",
            f"the file's config.json says {stated} attention heads, the model has {ours}; pass "
            f"num_heads={stated}",
        )


def _may_be_left_out(plan: Plan, key: str) -> bool:
    """Whether an array is of a head that the model does not take."""
    config = plan.config
    headless = config.classes is None
    for rule in plan.checkpoint.layout.rules:
        layer = rule.path.split("/")[0]
        if key not in rule.keys:
            continue
        if layer in HEADS and (headless or _head_starts_fresh(plan)):
            return True
        unread = headless or plan.checkpoint.options.get("pooling") == "gap"
        if layer == "pooling" and unread and config.pooling not in ("map", "attention"):
            return True
    return False


def explain(plan: Plan) -> str:
    """Lists all problems in one message, with the variant that fits the file."""
    problems = listed(plan.problems, _MAX_LISTED, "\n  ")
    guess = plan.checkpoint.variant
    advice = f" The file looks like a {guess}." if guess else ""
    return (
        f"{plan.checkpoint.file.path} ({plan.checkpoint.layout.name} layout) does not fit the "
        f"model {plan.model.name!r}, and nothing was loaded. {len(plan.problems)} problems:"
        f"\n  {problems}\nCheck variant, image size and options.{advice}"
    )
