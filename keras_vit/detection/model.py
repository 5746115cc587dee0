"""Object detection: keras-hub's RetinaNet on the feature pyramid of a Vision Transformer."""

from __future__ import annotations

import math
from typing import Any

import keras

from keras_vit.checks import check_positive
from keras_vit.installation import needing
from keras_vit.models.pyramid import PyramidModel, build_pyramid
from keras_vit.runtime.model import Model

_LEVELS = (3, 4, 5)  # what RetinaNet reads; it makes the coarser levels itself
_COARSEST = 7  # of these, of a stride of 128 pixels
_PRIOR = 0.01  # confidence of a class before training, section 4.1 of the paper of RetinaNet
_STDDEV = 0.01  # of the kernels of both heads before training, the same section
_LEAST_CONFIDENCE = 0.05  # COCO's measures need boxes of low confidence too, as in Detectron2


def build_detector(
    backbone: keras.Model,
    classes: int,
    channels: int = 256,
    num_conv_layers: int = 4,
    anchor_size: float = 4.0,
) -> keras.Model:
    """Builds keras-hub's RetinaNet on the feature pyramid of a backbone; needs `keras-hub`.

    Pyramid, anchors, losses and decoding: the simple feature pyramid of ViTDet
    (https://arxiv.org/abs/2203.16527) at strides of 8, 16 and 32 pixels, keras-hub's FPN on it, and
    its `RetinaNetObjectDetector` (https://arxiv.org/abs/1708.02002). The weights of the backbone
    are shared. Set `backbone.trainable = False` before to train on frozen features.

    Args:
        backbone: A Vision Transformer for images of one size, or a model of `build_pyramid` with
            the levels 3, 4 and 5.
        classes: Number of classes.
        channels: Channels of the levels of ViTDet's pyramid.
        num_conv_layers: Convolutions before the predictions of boxes and classes.
        anchor_size: Side of the smallest square anchor of a level, in strides of this level: 4.0 is
            32 pixels on P3. A box that overlaps no anchor by half is hardly learned, so take a
            smaller size for smaller objects.

    Returns:
        A `keras_hub.models.RetinaNetObjectDetector` for boxes in pixels as left, top, right and
        bottom (`"xyxy"`): the batches of `keras_vit.detection.box_batches`. It trains with plain
        `fit` after its `compile(optimizer)`, and `predict` gives boxes.

    Raises:
        ImportError: If keras-hub is not installed.
        ValueError: If the images are no whole number of the largest stride of the pyramid, the
            stride of the patches is no power of two, an argument is out of its range, or Keras's
            data format is "channels_first".

    Example:

    >>> backbone = keras_vit.ViTTi16(
    ...     weights=None, include_top=False, pooling=None, input_shape=(256, 256, 3))
    >>> detector = keras_vit.detection.build_detector(backbone, classes=10)
    >>> detector.compile(keras.optimizers.AdamW(1e-4))
    """
    check_positive("classes", classes)
    check_positive("num_conv_layers", num_conv_layers)
    if not anchor_size > 0:
        raise ValueError(f"`anchor_size` must be above 0. Received: anchor_size={anchor_size!r}.")
    if keras.config.image_data_format() != "channels_last":  # the heads of keras-hub read it
        raise ValueError(
            "Detectors need the data format 'channels_last'. Received: 'channels_first'. Call "
            "keras.config.set_image_data_format('channels_last') before."
        )
    with needing("detection", "Detectors need keras-hub"):
        from keras_hub.layers import AnchorGenerator, NonMaxSuppression
        from keras_hub.models import RetinaNetBackbone, RetinaNetObjectDetector
    pyramid = backbone
    if not isinstance(backbone, PyramidModel):
        pyramid = build_pyramid(backbone, channels, _LEVELS)
    missing = [f"P{level}" for level in _LEVELS if f"P{level}" not in pyramid.pyramid_outputs]
    if missing:
        raise ValueError(
            f"RetinaNet reads P3, P4 and P5. Received: a pyramid without {', '.join(missing)}. "
            f"Build it with levels={_LEVELS}."
        )
    features = RetinaNetBackbone(
        pyramid,
        min_level=_LEVELS[0],
        max_level=_COARSEST,
        use_p5=False,
        image_shape=tuple(pyramid.inputs[0].shape[1:]),
        data_format="channels_last",
    )
    detector = RetinaNetObjectDetector(
        features,
        num_classes=classes,
        bounding_box_format="xyxy",
        anchor_generator=AnchorGenerator(
            "xyxy",
            min_level=_LEVELS[0],
            max_level=_COARSEST,
            num_scales=3,
            aspect_ratios=[0.5, 1.0, 2.0],
            anchor_size=anchor_size,
        ),
        pre_logits_num_conv_layers=num_conv_layers,
        prediction_decoder=NonMaxSuppression(
            "xyxy", from_logits=True, confidence_threshold=_LEAST_CONFIDENCE, dtype="float32"
        ),
    )
    # A layer casts its inputs: in bfloat16, coordinates above 256 would be even numbers.
    for layer in (detector.label_encoder, detector.label_encoder.box_matcher):
        layer.dtype_policy = keras.DTypePolicy("float32")
    # keras-hub 0.32 gives the prior of the focal loss to the boxes instead of the classes, and its
    # kernels have five times the paper's deviation, so that the first loss is about 300.
    prior = -math.log((1 - _PRIOR) / _PRIOR)
    for head, bias in ((detector.box_head, 0.0), (detector.classification_head, prior)):
        for layer in (*head.conv_layers, head.prediction_layer):
            layer.kernel.assign(keras.random.normal(layer.kernel.shape, stddev=_STDDEV))
        variable = head.prediction_layer.bias
        variable.assign(keras.ops.full(variable.shape, bias, variable.dtype))
    return detector


class DetectorTrainer(Model):
    """A `keras_vit.Model` that trains a detector of keras-hub, so that `ResumeTraining` takes it.

    Args:
        detector: The detector, whose layers and loss it shares.
    """

    def __init__(self, detector: keras.Model):
        super().__init__(detector.input, detector.output, name=f"{detector.name}_trainer")
        self.__dict__["detector"] = detector  # which Keras does not track

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of the detector."""
        return self.__dict__["detector"].compute_loss(*args, **kwargs)
