"""What is to be read for which variable of a model, and everything that does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.weights.array_file import FLOATS
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.inspection import implied_options, position_readings, possible_prefixes
from keras_vit.weights.layout import Rule
from keras_vit.weights.sizes import guess_variant, size

POSITIONS = "position_embedding/embedding"
PATCHES = "patch_encoder/projection/kernel"
_HEADS = ("head", "head_distillation", "pre_logits")
_MAX_LISTED = 30


@dataclasses.dataclass
class Plan:
    """What is to be read for which variable, and everything that does not fit."""

    model: Any
    checkpoint: Checkpoint
    grid: tuple[int, int] | None = None
    resize_patches: bool = False
    parts: dict[str, tuple[Any, Rule, tuple[str, ...], list]] = dataclasses.field(
        default_factory=dict
    )
    fresh: dict[str, Any] = dataclasses.field(default_factory=dict)
    resized: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    places: tuple[int, tuple[int, int]] | None = None

    @property
    def resize_method(self) -> str:
        """How positions are resized."""
        layout = self.checkpoint.layout
        return (layout.resize_flexible if self.resize_patches else None) or layout.resize


def make_plan(
    model: Any, checkpoint: Checkpoint, grid: tuple[int, int] | None, resize_patches: bool
) -> Plan:
    """Compares a model with a checkpoint; the arguments are those of `load_weights`."""
    plan = Plan(model, checkpoint, grid, resize_patches)
    _match(plan)
    _check_rest(plan)
    _check_heads(plan)
    return plan


def model_variables(model: Any) -> Iterator[Any]:
    """The variables that a checkpoint holds: all but the states of random generators."""
    for variable in model.weights:
        if "seed_generator" not in variable.path:
            yield variable


def _match(plan: Plan) -> None:
    """Finds for every variable its arrays in the file, and compares shapes."""
    config, layout = plan.model.config, plan.checkpoint.layout
    skip_head = _head_starts_fresh(plan)
    for variable in model_variables(plan.model):
        path = variable.path
        found = layout.find(path, config)
        head = path.split("/")[0] in _HEADS
        if head and skip_head and not _fits_pre_logits(plan, path, variable):
            plan.fresh[path] = variable
        elif found is None:
            plan.problems.append(f"missing: the {layout.name} layout has nothing like {path}")
        else:
            _match_one(plan, path, variable, *found)


def _match_one(plan: Plan, path: str, variable: Any, rule: Rule, keys: tuple[str, ...]) -> None:
    entries = plan.checkpoint.entries
    missing = [key for key in keys if key not in entries]
    if missing:
        names = ", ".join(repr(plan.checkpoint.original(key)) for key in missing)
        plan.problems.append(f"missing: {names}, for {path} {tuple(variable.shape)}")
        return
    shapes = rule.file_shapes(tuple(variable.shape), getattr(plan.model.config, "num_heads", 1))
    if path == POSITIONS:
        shapes = [_match_positions(plan, variable, keys[0], shapes[0])]
    if path == PATCHES:
        shapes = [_match_patches(plan, variable, rule, entries[keys[0]].shape, shapes[0])]
    for key, shape in zip(keys, shapes, strict=True):
        _check_entry(plan, path, key, shape)
    plan.parts[path] = (variable, rule, keys, shapes)


def _check_entry(plan: Plan, path: str, key: str, shape: tuple[int, ...]) -> None:
    entry, name = plan.checkpoint.entries[key], plan.checkpoint.original(key)
    if entry.dtype not in FLOATS:
        plan.problems.append(f"wrong type: {name!r} holds {entry.dtype} values, not floats")
    if _squeezed(entry.shape) != _squeezed(shape):
        plan.problems.append(
            f"misshapen: {name!r} is {entry.shape}, but {path} needs {tuple(shape)}"
        )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of one carry no information; files differ in them."""
    return tuple(size for size in shape if size != 1)


def _match_positions(plan: Plan, variable, key: str, expected) -> tuple[int, ...]:
    """Decides how the file's position table is read; returns the shape it should have."""
    config = plan.model.config
    readings = position_readings(plan.checkpoint, plan.grid, config.grid)
    entry = plan.checkpoint.entries[key]
    rows = size(entry, -2)
    if len(readings) != 1:
        plan.problems.append(_position_problem(plan, key, rows, readings, config))
        return entry.shape
    plan.places = readings[0]
    grid = plan.places[1]
    if grid != config.grid:
        plan.resized[POSITIONS] = (
            f"{grid[0]} x {grid[1]} to {config.grid[0]} x {config.grid[1]} places "
            f"({plan.resize_method})"
        )
    return (*expected[:-2], rows, variable.shape[-1])


def _position_problem(plan: Plan, key: str, rows: int, readings: list, config: Any) -> str:
    name = plan.checkpoint.original(key)
    if readings:
        ways = " or ".join(
            f"{prefix} rows for tokens and a grid of {grid[0]} x {grid[1]}"
            for prefix, grid in readings
        )
        return (
            f"ambiguous: the {rows} rows of {name!r} can be {ways}; pass grid=(rows, columns) to "
            "load_weights"
        )
    tokens = " or ".join(map(str, sorted(possible_prefixes(plan.checkpoint))))
    wanted = plan.grid or config.grid
    return (
        f"misshapen: the {rows} rows of {name!r}, {tokens} of them for tokens, are no grid of "
        f"{wanted[0]} x {wanted[1]}{'' if plan.grid else ' and no square'}; pass the file's "
        "grid=(rows, columns) to load_weights"
    )


def _match_patches(plan: Plan, variable, rule: Rule, shape, expected) -> tuple[int, ...]:
    """Notes how the patch kernel adapts; returns the shape the file should have."""
    if len(shape) != 4 or shape == tuple(expected):
        return expected
    ours = rule.to_ours([np.broadcast_to(np.float32(0), shape)]).shape
    wanted = tuple(variable.shape)
    if ours[-1] != wanted[-1] or getattr(plan.model.config, "stem", None) is not None:
        return expected
    changes = []
    if ours[:2] != wanted[:2]:
        if not plan.resize_patches:
            return expected
        method = plan.checkpoint.layout.resize_patches
        changes.append(
            f"{ours[0]} x {ours[1]} to {wanted[0]} x {wanted[1]} pixels (pseudo-inverse, {method})"
        )
    if ours[2] != wanted[2]:
        changes.append(f"{ours[2]} to {wanted[2]} channels")
    plan.resized[PATCHES] = ", ".join(changes)
    return shape


def _head_starts_fresh(plan: Plan) -> bool:
    """Whether the model's head is for other classes than the file's, or the file has none."""
    head = plan.checkpoint.find("head/bias")
    if head is None and plan.checkpoint.find("head/kernel") is not None:
        return False  # half a head: its bias is missed
    return size(head, -1) != plan.model.config.classes


def _fits_pre_logits(plan: Plan, path: str, variable: Any) -> bool:
    """Whether the layer before a fresh head is in the file all the same."""
    entry = plan.checkpoint.find("pre_logits/bias")
    return (
        path.startswith("pre_logits/")
        and entry is not None
        and (size(entry, -1) == variable.shape[-1])
    )


def _check_rest(plan: Plan) -> None:
    """Whatever in the file nobody asked for is a problem, unless it is a head."""
    used = {key for _, _, keys, _ in plan.parts.values() for key in keys}
    for key in plan.checkpoint.entries:
        if key in used:
            continue
        if _may_be_left_out(plan, key):
            plan.left_out.append(plan.checkpoint.original(key))
        elif not _mentioned(plan, key):
            entry = plan.checkpoint.entries[key]
            plan.problems.append(
                f"unused: {plan.checkpoint.original(key)!r} {entry.shape}, for which the model "
                "has no place"
            )


def _check_heads(plan: Plan) -> None:
    """The number of heads is in no shape of timm's and transformers' files, but beside them."""
    stated = implied_options(plan.checkpoint).get("num_heads")
    ours = getattr(plan.model.config, "num_heads", None)
    if plan.checkpoint.file.kind != "npz" and stated and ours and stated != ours:
        plan.problems.append(
            f"other heads: config.json beside the file says {stated} attention heads, the model "
            f"has {ours}; pass num_heads={stated}"
        )


def _mentioned(plan: Plan, key: str) -> bool:
    return any(repr(plan.checkpoint.original(key)) in problem for problem in plan.problems)


def _may_be_left_out(plan: Plan, key: str) -> bool:
    """Heads that the model does not take: of other classes, or any where it has no head."""
    config = plan.model.config
    headless = config.classes is None
    for rule in plan.checkpoint.layout.rules:
        room = rule.path.split("/")[0]
        if key not in rule.keys:
            continue
        if room in _HEADS and (headless or _head_starts_fresh(plan)):
            return True
        if room == "pooling" and headless and config.pooling != "map":
            return True
    return False


def explain(plan: Plan) -> str:
    """All problems in one message, and what the file seems to be."""
    shown = plan.problems[:_MAX_LISTED]
    more = len(plan.problems) - len(shown)
    lines = "".join(f"\n  {problem}" for problem in shown)
    rest = f"\n  and {more} more" if more else ""
    guess = guess_variant(plan.checkpoint)
    advice = f" The file looks like a {guess}." if guess else ""
    return (
        f"{plan.checkpoint.file.path} ({plan.checkpoint.layout.name} layout) does not fit the "
        f"model {plan.model.name!r}, and nothing was loaded. {len(plan.problems)} problems:"
        f"{lines}{rest}\nCheck variant, image size and options.{advice}"
    )
