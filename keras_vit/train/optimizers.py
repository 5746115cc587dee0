"""Optimizers: SGD as in the official code, and AdamW with layer-wise learning rate decay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras


class _DecayOfKernels(keras.optimizers.Optimizer):
    """An optimizer whose weight decay may leave out all variables but kernels."""

    decay_kernels_only: bool

    def build(self, variables: Sequence[keras.Variable]) -> None:
        self._are_kernels = list(map(is_kernel, variables))
        super().build(variables)

    def _use_weight_decay(self, variable: keras.Variable) -> bool:
        if self.decay_kernels_only and not self._are_kernels[self._get_variable_index(variable)]:
            return False
        return super()._use_weight_decay(variable)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay_kernels_only": self.decay_kernels_only}


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(_DecayOfKernels, keras.optimizers.AdamW):
    """AdamW as in PyTorch and optax, with a learning rate factor for every variable.

    The factor also scales the weight decay, as in the fine-tuning of BEiT and timm. Epsilon is
    added after the bias correction, as in Algorithm 1 of https://arxiv.org/abs/1412.6980. Keras
    adds it before: at gradients of 1e-6, its first step is 0.24 of this one. The rest is
    `keras.optimizers.AdamW`: weight decay is decoupled from the gradient and multiplied by the
    current learning rate. big_vision multiplies it by the shape of the schedule only, so its decay
    of 1e-4 at a learning rate of 1e-3 is 0.1 here.

    Args:
        learning_rate: A number or a `keras.optimizers.schedules.LearningRateSchedule`.
        rate_factors: `{variable path: factor}`, as `layerwise_decay` returns; a variable without
            an entry has the factor 1.
        decay_kernels_only: Whether only kernels decay, as in big_vision: not biases, norms, tokens
            and positions.
        epsilon: Added to the square root of the second moment, after its bias correction.
        **kwargs: As for `keras.optimizers.AdamW`.

    Raises:
        ValueError: If a path belongs to none of the optimizer's variables.

    Example:

    >>> factors = keras_vit.train.layerwise_decay(model, 0.75)
    >>> model.compile(keras_vit.train.AdamW(1e-3, rate_factors=factors), loss)
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        rate_factors: Mapping[str, float] | None = None,
        decay_kernels_only: bool = False,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, epsilon=epsilon, **kwargs)
        self.rate_factors = dict(rate_factors or {})
        self.decay_kernels_only = decay_kernels_only
        self._scalars: dict[Any, tuple[Any, ...]] | None = None  # while `apply` runs

    def build(self, variables: Sequence[keras.Variable]) -> None:
        paths = [variable.path for variable in variables]
        unknown = sorted(self.rate_factors.keys() - paths)
        if unknown:
            raise ValueError(
                f"`rate_factors` names variables that are not trainable: {', '.join(unknown[:5])}"
                f"{' ...' if len(unknown) > 5 else ''}. Received variables such as {paths[0]!r}. "
                "Call `layerwise_decay` on the trained model, after freezing layers."
            )
        self._factors = [float(self.rate_factors.get(path, 1.0)) for path in paths]
        super().build(variables)

    def apply(
        self,
        grads: Sequence[keras.KerasTensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> Any:
        self._scalars = {}  # of this step, and in its graph
        try:
            return super().apply(grads, trainable_variables)
        finally:
            self._scalars = None

    def update_step(
        self,
        gradient: keras.KerasTensor,
        variable: keras.Variable,
        learning_rate: keras.KerasTensor,
    ) -> None:
        ops, dtype, index = keras.ops, variable.dtype, self._get_variable_index(variable)
        decay, rate, epsilon = self._scalars_of(learning_rate, self._factors[index], dtype)
        if self.weight_decay and self._use_weight_decay(variable):
            self.assign_sub(variable, ops.multiply(variable, decay))
        gradient = ops.cast(gradient, dtype)
        first, second = self._momentums[index], self._velocities[index]
        if _has_one_operator(variable) and not self.amsgrad:
            self._update_at_once(variable, first, second, gradient, rate, epsilon)
            return
        self.assign_add(first, ops.multiply(ops.subtract(gradient, first), 1 - self.beta_1))
        change = ops.subtract(ops.square(gradient), second)
        self.assign_add(second, ops.multiply(change, 1 - self.beta_2))
        if self.amsgrad:
            largest = self._velocity_hats[index]
            self.assign(largest, ops.maximum(largest, second))
            second = largest
        scaled = ops.multiply(first, rate)
        self.assign_sub(variable, ops.divide(scaled, ops.add(ops.sqrt(second), epsilon)))

    def _update_at_once(
        self, variable: Any, first: Any, second: Any, gradient: Any, rate: Any, epsilon: Any
    ) -> None:
        """Updates a variable and its moments by TensorFlow's operator of Adam."""
        import tensorflow as tf

        scalars = {} if self._scalars is None else self._scalars
        if "betas" not in scalars:
            scalars["betas"] = tuple(map(tf.constant, (0.0, self.beta_1, self.beta_2)))
        zero, beta_1, beta_2 = scalars["betas"]
        tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(first),
            v=_handle(second),
            beta1_power=zero,  # `lr` has the bias correction
            beta2_power=zero,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.convert_to_tensor(gradient),
        )

    def _scalars_of(self, learning_rate: Any, factor: float, dtype: Any) -> tuple[Any, Any, Any]:
        """Computes the decay, the rate with the bias correction, and the epsilon of a step.

        Computed once in a step for all variables with this factor: for every variable, as in Keras,
        they are most of the operations of the optimizer, which TensorFlow traces in the first step.
        """
        scalars = {} if self._scalars is None else self._scalars
        if (factor, dtype) not in scalars:
            ops, step = keras.ops, keras.ops.cast(self.iterations + 1, dtype)
            powers = [ops.power(ops.cast(beta, dtype), step) for beta in (self.beta_1, self.beta_2)]
            root = ops.sqrt(1 - powers[1])
            rate = ops.cast(learning_rate, dtype) * factor
            corrected = rate * (root / (1 - powers[0]))
            decay = (self.weight_decay or 0.0) * rate
            scalars[factor, dtype] = decay, corrected, self.epsilon * root
        return scalars[factor, dtype]

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        pass  # `update_step` does, with the learning rate of each variable

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate_factors": self.rate_factors}


@keras.saving.register_keras_serializable("keras_vit")
class SGD(_DecayOfKernels, keras.optimizers.SGD):
    """SGD with momentum as in the official code: `v = g + m v`, then `w = w - rate * v`.

    In `keras.optimizers.SGD`, the learning rate is part of the velocity: `v = m v - rate * g`. The
    two differ when the rate changes, because Keras's velocity keeps the old rates.

    Args:
        learning_rate: A number or a `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: `m` above, in [0, 1].
        decay_kernels_only: As for `AdamW`.
        **kwargs: As for `keras.optimizers.SGD`, except `nesterov`.

    Raises:
        ValueError: If `nesterov` is true.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.01,
        momentum: float = 0.9,
        decay_kernels_only: bool = False,
        **kwargs: Any,
    ):
        if kwargs.pop("nesterov", False):
            raise ValueError(
                "The official SGD has no Nesterov momentum. Use `keras.optimizers.SGD` for it."
            )
        super().__init__(learning_rate=learning_rate, momentum=momentum, **kwargs)
        self.decay_kernels_only = decay_kernels_only

    def update_step(
        self,
        gradient: keras.KerasTensor,
        variable: keras.Variable,
        learning_rate: keras.KerasTensor,
    ) -> None:
        step = keras.ops.cast(gradient, variable.dtype)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            if _has_one_operator(variable):
                self._update_at_once(variable, velocity, step, learning_rate)
                return
            self.assign(velocity, step + velocity * keras.ops.cast(self.momentum, variable.dtype))
            step = velocity
        self.assign_sub(variable, step * keras.ops.cast(learning_rate, variable.dtype))

    def _update_at_once(self, variable: Any, velocity: Any, gradient: Any, rate: Any) -> None:
        """Updates a variable and its velocity by TensorFlow's operator of momentum."""
        import tensorflow as tf

        tf.raw_ops.ResourceApplyMomentum(
            var=_handle(variable),
            accum=_handle(velocity),
            lr=tf.cast(rate, variable.dtype),
            grad=tf.convert_to_tensor(gradient),
            momentum=self.momentum,
        )


def _has_one_operator(variable: Any) -> bool:
    """Tells whether TensorFlow updates a variable and its moments by one operator.

    That is one pass over memory instead of several, and few operations to trace.
    """
    is_float32 = keras.backend.standardize_dtype(variable.dtype) == "float32"
    return is_float32 and keras.backend.backend() == "tensorflow"


def _handle(variable: Any) -> Any:
    """Returns the handle of a variable of Keras or TensorFlow, on this replica."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle


def is_kernel(variable: keras.Variable) -> bool:
    """Whether a variable is the kernel of a layer, by the last part of its path."""
    return variable.path.rsplit("/", 1)[-1] == "kernel"


def layerwise_decay(model: keras.Model, decay: float) -> dict[str, float]:
    """Layer-wise learning rate decay: factors that fall from the head of a ViT to its patches.

    The head and the last norm have the factor 1, the last block `decay`, the block before
    `decay ** 2`, and the layers before the first block the smallest
    (https://arxiv.org/abs/2106.08254, appendix).

    Args:
        model: A ViT of this package, or a model built on one.
        decay: Ratio of the factor of a block to that of the next block, in (0, 1].

    Returns:
        `{path: factor}` for all trainable variables, for `AdamW(rate_factors=...)`.

    Raises:
        ValueError: If `decay` is not in (0, 1], or the model has no blocks.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"`decay` must be in (0, 1]. Received: {decay}.")
    depths = {v.path: _find_depth(v.path) for v in model.trainable_variables}
    blocks = [depth for depth in depths.values() if depth is not None and depth > 0]
    if not blocks:
        raise ValueError(
            f"The model {model.name!r} has no layers block_0, block_1, ... with learning rates to "
            "decay. Pass a Vision Transformer of this package, or a model built on one."
        )
    top = max(blocks) + 1
    return {path: decay ** (top - (top if n is None else n)) for path, n in depths.items()}


_BEFORE = (
    r"stem_|patch_encoder|patch_norm|class_token|distillation_token|registers|position_embedding"
    r"|embedding_norm"
)


def _find_depth(path: str) -> int | None:
    """0 before the blocks, 1 in the first block, and so on; `None` after the blocks."""
    block = re.search(r"(?:^|/)block_(\d+)/", path)
    if block:
        return int(block[1]) + 1
    return 0 if re.search(rf"(?:^|/)(?:{_BEFORE})", path) else None
