"""`fit`, `evaluate` and `predict` on arrays, without the autotuning of tf.data.

Keras reads arrays through tf.data. Building the pipeline takes longer than a small ViT takes for an
image, and deleting it can take as long as the whole call (see `without_autotune`). So `predict`
slices an array itself. For `fit` and `evaluate`, whose data may have weights and an order, Keras
gets a data adapter instead of arrays: its own, with a pipeline that is not tuned. Under
`tf.distribute`, what TensorFlow adds to a dataset for each device is not tuned either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.runtime.distributed import is_distributed
from keras_vit.runtime.private_names import (
    DeviceData,
    Tensor,
    array_adapter_class,
    can_convert_arrays,
    train_validation_split,
)

if TYPE_CHECKING:
    import tensorflow as tf
    from keras import Model as Base
else:
    Base = object  # `keras.Model` comes after this class in the bases of `keras_vit.Model`


class ArrayData(Base):
    """Methods of `keras_vit.Model` that read arrays."""

    steps_per_execution: int  # of keras.Model
    check_process: Callable[[], None]  # of keras_vit.Model
    check_values: Callable[[Any], None]

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """As `keras.Model.fit`; warns of arrays in another range than the model takes."""
        self.check_process()
        self.check_values(x)
        if validation_split and validation_data is None and _are_arrays(x, y, sample_weight):
            data = (x, y, sample_weight)
            (x, y, sample_weight), validation_data = train_validation_split(data, validation_split)
        if validation_data is not None:
            held_out = keras.utils.unpack_x_y_sample_weight(validation_data)
            if _are_arrays(*held_out):
                size = validation_batch_size or batch_size
                validation_data = _adapter(*held_out, batch_size=size, steps=validation_steps)
        if _are_arrays(x, y, sample_weight):
            options = {"batch_size": batch_size, "steps": steps_per_epoch, "shuffle": shuffle}
            x = _adapter(x, y, sample_weight, class_weight=class_weight, **options)
            y = sample_weight = class_weight = None
        return super().fit(
            x=x,
            y=y,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle,
            class_weight=class_weight,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
        )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.evaluate`, with the check of `fit`."""
        self.check_process()
        self.check_values(x)
        if _are_arrays(x, y, sample_weight):
            x = _adapter(x, y, sample_weight, batch_size=batch_size, steps=steps)
            y = sample_weight = None
        options = {"steps": steps, "callbacks": callbacks, "return_dict": return_dict, **kwargs}
        return super().evaluate(x, y, batch_size, verbose, sample_weight, **options)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """As `keras.Model.predict`, with the check of `fit`."""
        self.check_process()
        self.check_values(x)
        if steps is None and self._slices_itself(x):
            return self._predict_array(x, batch_size or 32, verbose, callbacks)
        if _are_arrays(x):
            x = _adapter(x, batch_size=batch_size, steps=steps)
        if is_distributed(self):
            x = self._for_devices(x)
        return super().predict(x, batch_size, verbose, steps, callbacks)

    def _for_devices(self, x: Any) -> Any:
        """Distributes a dataset or arrays as Keras does, without autotuning; not other data."""
        import tensorflow as tf

        if isinstance(x, _adapter_class()):
            x.distribute = self._for_devices
        if not isinstance(x, tf.data.Dataset):
            return x
        data = self.distribute_strategy.experimental_distribute_dataset(x)
        return DeviceData.of(data, without_autotune)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Keras calls it with the data of `fit` and `evaluate`, before anything is read.

        TensorFlow hands the batches of a distributed dataset to each device through a dataset of
        its own, which is tuned whatever the options of the user's dataset say.
        """
        if iterator is not None and is_distributed(self):
            DeviceData.use_in(iterator, without_autotune)
        super()._maybe_symbolic_build(iterator, data_batch)

    def _slices_itself(self, x: Any) -> bool:
        if keras.backend.backend() != "tensorflow" or is_distributed(self):
            return False
        import tensorflow as tf

        is_array = isinstance(x, np.ndarray) or (tf.is_tensor(x) and hasattr(x, "numpy"))
        return is_array and self.steps_per_execution == 1 and len(x.shape) > 0 and len(x) > 0

    def _predict_array(self, x: Tensor, batch_size: int, verbose: str | int, callbacks: Any) -> Any:
        self.check_inputs(x)  # Keras checks later, against shapes that it has relaxed
        batches = [slice(start, start + batch_size) for start in range(0, len(x), batch_size)]
        self.make_predict_function()
        if not callbacks and verbose == 0:  # without a list of callbacks, which starts a thread
            return _concatenate([self.predict_function([(_tensor(x[b]),)]) for b in batches])
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=1,
                steps=len(batches),
                model=self,
            )
        self.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        for step, batch in enumerate(batches):
            callbacks.on_predict_batch_begin(step)
            outputs.append(self.predict_function([(_tensor(x[batch]),)]))
            callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()
        return _concatenate(outputs)


def _concatenate(outputs: list[Any]) -> Any:
    """Joins the outputs of batches to arrays."""
    if len(outputs) == 1:
        return keras.tree.map_structure(lambda part: part.numpy(), outputs[0])
    return keras.tree.map_structure(
        lambda *parts: np.concatenate([part.numpy() for part in parts]), *outputs
    )


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns the autotuning of a dataset off: the thread that sets how much runs in parallel.

    That thread sleeps for 10 ms, 20 ms and so on up to a minute. Keras deletes the iterators of
    every epoch before their end, and TensorFlow (2.21 and before) then often waits until the thread
    wakes, because the thread misses the signal to stop. Without autotuning, `AUTOTUNE` means up to
    16 parallel calls.

    Args:
        dataset: Any dataset.

    Returns:
        A dataset with the same elements.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _are_arrays(x: Any, y: Any = None, sample_weight: Any = None) -> bool:
    """Tells whether Keras would read data as arrays, with TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return False
    return can_convert_arrays((x, y, sample_weight))


def _adapter(
    x: Any, y: Any = None, sample_weight: Any = None, *, steps: int | None = None, **options: Any
) -> Any:
    """Returns the adapter that Keras makes of arrays, without autotuning."""
    limit = keras.config.max_steps_per_epoch()
    if limit and (not steps or limit < steps):
        steps = limit
    return _adapter_class()(x, y, sample_weight=sample_weight, steps=steps, **options)


@functools.cache
def _adapter_class() -> Any:
    class ArrayAdapter(array_adapter_class()):  # type: ignore[misc]  # Keras is untyped
        """Keras's adapter of arrays, whose pipeline is not tuned."""

        distribute: Callable[[Any], Any] | None = None

        def get_tf_dataset(self) -> Any:
            data = without_autotune(super().get_tf_dataset())
            return self.distribute(data) if self.distribute else data

    return ArrayAdapter


def _tensor(x: Any) -> Tensor:
    """Returns a batch with the dtype that Keras gives it: floats become `floatx`."""
    import tensorflow as tf

    x = tf.convert_to_tensor(x)
    return tf.cast(x, keras.config.floatx()) if x.dtype.is_floating else x
