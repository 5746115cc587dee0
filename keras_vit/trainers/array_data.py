"""`fit`, `evaluate` and `predict` on arrays, without what tf.data adds to them.

Keras reads arrays through tf.data. Making the pipeline takes longer than a small ViT takes for an
image, and dropping it may take as long as the whole call (`keras_vit.trainers.tuning` tells why).
So `predict` takes its batches from an array itself; in `fit` and `evaluate`, whose data may have
weights and an order, Keras's pipeline stays and its tuner goes. `tests/trainers/test_array_data.py`
watches whether TensorFlow still waits.
"""

from __future__ import annotations

import contextlib
import math

import keras
import numpy as np

from keras_vit.trainers.distributed import is_distributed


class ArrayData:
    """What `keras_vit.Model` does before `keras.Model` for data in arrays."""

    steps_per_execution: int  # of keras.Model

    def fit(self, *args, **kwargs):
        """As `keras.Model.fit`."""
        with _arrays_untuned():
            return super().fit(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        """As `keras.Model.evaluate`."""
        with _arrays_untuned():
            return super().evaluate(*args, **kwargs)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """As `keras.Model.predict`."""
        if steps is None and self._takes_batches_of(x):
            return self._predict_array(x, batch_size or 32, verbose, callbacks)
        with _arrays_untuned():
            return super().predict(x, batch_size, verbose, steps, callbacks)

    def _takes_batches_of(self, x) -> bool:
        if keras.backend.backend() != "tensorflow" or is_distributed(self):
            return False
        import tensorflow as tf

        is_array = isinstance(x, np.ndarray) or (tf.is_tensor(x) and hasattr(x, "numpy"))
        return is_array and self.steps_per_execution == 1 and len(x.shape) > 0 and len(x) > 0

    def _predict_array(self, x, batch_size, verbose, callbacks):
        self.check_inputs(x)  # the function's own check sees shapes that it has widened
        steps = math.ceil(len(x) / batch_size)
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.callbacks.CallbackList(
                callbacks,
                add_progbar=verbose != 0,
                verbose=verbose,
                epochs=1,
                steps=steps,
                model=self,
            )
        self.make_predict_function()
        self.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        for step in range(steps):
            callbacks.on_predict_batch_begin(step)
            batch = _tensor(x[step * batch_size : (step + 1) * batch_size])
            outputs.append(self.predict_function([(batch,)]))
            callbacks.on_predict_batch_end(step, {"outputs": outputs[-1]})
            if self.stop_predicting:
                break
        callbacks.on_predict_end()
        return keras.tree.map_structure(
            lambda *parts: np.concatenate([part.numpy() for part in parts]), *outputs
        )


def _tensor(x):
    """A batch as Keras converts it: floats of any width become `keras.config.floatx()`."""
    import tensorflow as tf

    x = tf.convert_to_tensor(x)
    return tf.cast(x, keras.config.floatx()) if x.dtype.is_floating else x


@contextlib.contextmanager
def _arrays_untuned():
    """Within it, what Keras makes of arrays has no tuner."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    from keras_vit.trainers.tuning import untuned

    made = ArrayDataAdapter.get_tf_dataset
    ArrayDataAdapter.get_tf_dataset = lambda adapter: untuned(made(adapter))
    try:
        yield
    finally:
        ArrayDataAdapter.get_tf_dataset = made
