"""The official SGD, AdamW with a rate for every layer, and decay of kernels alone."""

from __future__ import annotations

import re

import keras


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with a factor on the learning rate of every variable.

    The decay of a weight takes its factor too, as in the fine-tuning of BEiT and timm. Without
    factors it is Keras's. As there, the decay is apart from the gradient and multiplied by the
    learning rate of the moment: a decay of 0.1 here is 1e-4 in big_vision, which multiplies it by
    the shape of the schedule alone, with a learning rate of 1e-3.

    Args:
        learning_rate: A number or a `keras.optimizers.schedules.LearningRateSchedule`.
        rate_factors: `{path of a variable: factor}`, as `layerwise_decay` makes them; a variable
            that is not there has 1.
        decay_kernels_only: Whether weights other than kernels (biases, norms, tokens, positions)
            are spared, as in big_vision.
        **kwargs: As for `keras.optimizers.AdamW`.

    Raises:
        ValueError: If a path is not one of the variables that the optimizer is built for.

    Example:

    >>> factors = keras_vit.train.layerwise_decay(model, 0.75)
    >>> model.compile(keras_vit.train.AdamW(1e-3, rate_factors=factors), loss)
    """

    def __init__(self, learning_rate=0.001, rate_factors=None, decay_kernels_only=False, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.rate_factors = dict(rate_factors or {})
        self.decay_kernels_only = decay_kernels_only

    def build(self, variables):
        paths = [variable.path for variable in variables]
        unknown = sorted(self.rate_factors.keys() - paths)
        if unknown:
            raise ValueError(
                f"`rate_factors` names variables that are not trained: {', '.join(unknown[:5])}"
                f"{' ...' if len(unknown) > 5 else ''}. Received variables such as {paths[0]!r}. "
                "Make the factors of the model that is trained, after freezing layers."
            )
        self._factors = [float(self.rate_factors.get(path, 1.0)) for path in paths]
        self._are_kernels = list(map(is_kernel, variables))
        super().build(variables)

    def update_step(self, gradient, variable, learning_rate):
        rate = learning_rate * self._factors[self._get_variable_index(variable)]
        if self.weight_decay and self._use_weight_decay(variable):
            decay = keras.ops.cast(self.weight_decay * rate, variable.dtype)
            self.assign_sub(variable, keras.ops.multiply(variable, decay))
        super().update_step(gradient, variable, rate)

    def _apply_weight_decay(self, variables):
        pass  # with each variable's own rate, in `update_step`

    def _use_weight_decay(self, variable):
        if self.decay_kernels_only and not self._are_kernels[self._get_variable_index(variable)]:
            return False
        return super()._use_weight_decay(variable)

    def get_config(self):
        own = {"rate_factors": self.rate_factors, "decay_kernels_only": self.decay_kernels_only}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("keras_vit")
class SGD(keras.optimizers.SGD):
    """SGD with momentum as in the official code: `v = g + m v`, then `w = w - rate * v`.

    In `keras.optimizers.SGD` the rate is within the velocity, `v = m v - rate * g`. The two differ
    whenever the rate changes: there, gradients keep the rate they came with.

    Args:
        learning_rate: A number or a `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: `m` above, in [0, 1].
        decay_kernels_only: As for `AdamW`.
        **kwargs: As for `keras.optimizers.SGD`, but for `nesterov`.

    Raises:
        ValueError: If Nesterov's momentum is asked for.
    """

    def __init__(self, learning_rate=0.01, momentum=0.9, decay_kernels_only=False, **kwargs):
        if kwargs.pop("nesterov", False):
            raise ValueError(
                "The official SGD has no Nesterov momentum. Use `keras.optimizers.SGD` for it."
            )
        super().__init__(learning_rate=learning_rate, momentum=momentum, **kwargs)
        self.decay_kernels_only = decay_kernels_only

    def build(self, variables):
        self._are_kernels = list(map(is_kernel, variables))
        super().build(variables)

    def update_step(self, gradient, variable, learning_rate):
        step = keras.ops.cast(gradient, variable.dtype)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            self.assign(velocity, step + velocity * keras.ops.cast(self.momentum, variable.dtype))
            step = velocity
        self.assign_sub(variable, step * keras.ops.cast(learning_rate, variable.dtype))

    def _use_weight_decay(self, variable):
        if self.decay_kernels_only and not self._are_kernels[self._get_variable_index(variable)]:
            return False
        return super()._use_weight_decay(variable)

    def get_config(self):
        return {**super().get_config(), "decay_kernels_only": self.decay_kernels_only}


def is_kernel(variable) -> bool:
    """Whether a variable is the kernel of a layer, by the last word of its path."""
    return variable.path.rsplit("/", 1)[-1] == "kernel"


def layerwise_decay(model: keras.Model, decay: float) -> dict[str, float]:
    """Factors for learning rates that fall from the head of a ViT to its patches.

    The head and the last norm have 1, the last block `decay`, the one before `decay ** 2`, and
    what comes before the first block the least (https://arxiv.org/abs/2106.08254, appendix).

    Args:
        model: A ViT of this package, or a model built on one.
        decay: Factor from one block to the one before, in (0, 1].

    Returns:
        `{path: factor}` of the trainable variables, for `AdamW(rate_factors=...)`.

    Raises:
        ValueError: If `decay` is not in (0, 1], or the model has no blocks.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"`decay` must be in (0, 1]. Received: {decay}.")
    places = {v.path: _find_place(v.path) for v in model.trainable_variables}
    blocks = [place for place in places.values() if place is not None and place > 0]
    if not blocks:
        raise ValueError(
            f"The model {model.name!r} has no layers block_0, block_1, ... to let the rate fall "
            "over. Pass a Vision Transformer of this package, or a model built on one."
        )
    top = max(blocks) + 1
    return {path: decay ** (top - (top if n is None else n)) for path, n in places.items()}


_BEFORE = r"stem_|patch_encoder|class_token|distillation_token|registers|position_embedding"


def _find_place(path: str) -> int | None:
    """0 before the blocks, from 1 in them, `None` behind them."""
    block = re.search(r"(?:^|/)block_(\d+)/", path)
    if block:
        return int(block[1]) + 1
    return 0 if re.search(rf"(?:^|/)(?:{_BEFORE})", path) else None
