"""The Vision Transformer (https://arxiv.org/abs/2010.11929) for Keras 3."""

from __future__ import annotations

import importlib
import typing

from keras_vit.analysis.attention import (
    attention_maps,
    attention_rollout,
    mean_attention_distance,
)
from keras_vit.analysis.features import (
    image_features,
    nearest_neighbors,
    patch_components,
    principal_axes,
    project_patches,
    token_norms,
)
from keras_vit.analysis.filters import patch_filters
from keras_vit.analysis.plots import (
    overlay_attention,
    plot_attention,
    plot_attention_distance,
    plot_components,
    plot_maps,
    plot_patch_filters,
    plot_position_similarity,
    plot_scaling,
    plot_throughput,
    plot_training,
)
from keras_vit.analysis.positions import position_similarity
from keras_vit.analysis.relevance import class_relevance
from keras_vit.analysis.streams import ImageFiles
from keras_vit.cards.augreg import (
    augreg_file_name,
    find_best_augreg,
    parse_augreg_name,
    read_augreg_index,
)
from keras_vit.cards.card import Card
from keras_vit.config import (
    IMAGENET_STATISTICS,
    UNIT_RANGE,
    Preprocessing,
    ResNetConfig,
    ResNetStem,
    ViTConfig,
)
from keras_vit.create import (
    BiTR50x1,
    BiTR50x2,
    BiTR50x3,
    BiTR101x1,
    BiTR101x3,
    BiTR152x1,
    BiTR152x2,
    BiTR152x4,
    BiTR200x3,
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTB32,
    R50ViTL16,
    R50ViTL32,
    RViTTi16,
    ViTB8,
    ViTB14,
    ViTB16,
    ViTB32,
    ViTCordonnier2,
    ViTGiant14,
    ViTGiantOpt16,
    ViTGigantic14,
    ViTH14,
    ViTL14,
    ViTL16,
    ViTL32,
    ViTM16,
    ViTS8,
    ViTS14,
    ViTS16,
    ViTS32,
    ViTSo400m14,
    ViTSo400m16,
    ViTTi16,
    create_model,
)
from keras_vit.data.augmentation import Augmentation
from keras_vit.evaluate.compute import (
    TrainingCost,
    TrainingMemory,
    device_days,
    training_cost,
    training_exaflops,
    training_memory,
    utilization,
)
from keras_vit.evaluate.contestants import build_contestant
from keras_vit.evaluate.counting import (
    count_macs,
    count_parameters,
    count_stages,
    count_training_macs,
)
from keras_vit.evaluate.few_shot import (
    evaluate_few_shot,
    few_shot_accuracy,
    rank_regularizations,
)
from keras_vit.evaluate.scaling import (
    Interconnect,
    ScalingPoint,
    gradient_bytes,
    sent_bytes,
    simulate_scaling,
)
from keras_vit.evaluate.throughput import (
    Measurement,
    measure_throughput,
    read_measurements,
    write_measurements,
)
from keras_vit.layers.attention import SelfAttention
from keras_vit.layers.block import LayerScale, TransformerBlock
from keras_vit.layers.convolution import GroupNorm, StdConv2D
from keras_vit.layers.masking import PatchMask
from keras_vit.layers.merging import TokenMerging
from keras_vit.layers.mlp import MLP
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.residual import BiTRoot, ResidualUnit, ResNetStage, StemRoot
from keras_vit.layers.tokens import AddPositionEmbedding, ClassToken, PatchDropout, PatchEncoder
from keras_vit.models.fold import fold_standardization
from keras_vit.models.model import Model
from keras_vit.models.processors import keep_buffers
from keras_vit.models.resnet import build_resnet
from keras_vit.models.taps import attention_scores, features_of
from keras_vit.models.vit import build_vit
from keras_vit.pretrained import from_pretrained
from keras_vit.report import write_report
from keras_vit.train.adapt import adapt_model
from keras_vit.train.cluster import Cluster, check_cluster
from keras_vit.train.distillation import DistillationLoss, distillation_model
from keras_vit.train.fit import Fitted, fine_tune, pretrain
from keras_vit.train.layouts import vit_layout_map
from keras_vit.train.losses import SigmoidCrossentropy
from keras_vit.train.masked_patches import masked_patch_model
from keras_vit.train.optimizers import SGD, AdamW, layerwise_decay
from keras_vit.train.recipe import Recipe
from keras_vit.train.recipes import find_recipe, hyper_rule, list_recipes
from keras_vit.train.resume import ResumeTraining
from keras_vit.train.schedules import WarmUp
from keras_vit.train.snapshot import DamagedStateError
from keras_vit.train.state import StateMismatchError
from keras_vit.train.transfer import Transfer, transfer
from keras_vit.variants import find_config, list_variants
from keras_vit.weights.arrays import CheckpointError
from keras_vit.weights.detect import FileInfo, inspect_file
from keras_vit.weights.download import DownloadError
from keras_vit.weights.load import LoadReport, load_weights
from keras_vit.weights.plan import CheckpointMismatchError
from keras_vit.weights.published import fetch_weights, list_weights, load_augreg_index
from keras_vit.weights.save import save_weights

if typing.TYPE_CHECKING:
    from keras_vit.data.batches import View, eval_batches, train_batches, view_of
    from keras_vit.data.datasets import find_dataset, list_datasets, read_dataset
    from keras_vit.data.duplicates import NearDuplicate, find_near_duplicates
    from keras_vit.data.folder import read_folder
    from keras_vit.data.image_set import ImageSet, read_arrays, read_records
    from keras_vit.data.images import read_images
    from keras_vit.data.masking import mask_patches
    from keras_vit.data.shards import Shards, find_shards, read_shards
    from keras_vit.data.tfds import read_tfds
    from keras_vit.export.check_file import verify_export
    from keras_vit.export.litert import export_litert, litert_errors
    from keras_vit.export.onnx import export_onnx
    from keras_vit.export.saved_model import export_saved_model
    from keras_vit.export.serving import write_server_config

__version__ = "0.1.0"

# Imported when first asked for: they need TensorFlow, which other Keras backends do without.
_NEED_TENSORFLOW = {
    "ImageSet": "keras_vit.data.image_set",
    "NearDuplicate": "keras_vit.data.duplicates",
    "find_dataset": "keras_vit.data.datasets",
    "list_datasets": "keras_vit.data.datasets",
    "read_dataset": "keras_vit.data.datasets",
    "find_near_duplicates": "keras_vit.data.duplicates",
    "View": "keras_vit.data.batches",
    "eval_batches": "keras_vit.data.batches",
    "read_arrays": "keras_vit.data.image_set",
    "read_folder": "keras_vit.data.folder",
    "read_records": "keras_vit.data.image_set",
    "read_tfds": "keras_vit.data.tfds",
    "train_batches": "keras_vit.data.batches",
    "view_of": "keras_vit.data.batches",
    "mask_patches": "keras_vit.data.masking",
    "Shards": "keras_vit.data.shards",
    "find_shards": "keras_vit.data.shards",
    "read_images": "keras_vit.data.images",
    "read_shards": "keras_vit.data.shards",
    "export_litert": "keras_vit.export.litert",
    "litert_errors": "keras_vit.export.litert",
    "verify_export": "keras_vit.export.check_file",
    "export_onnx": "keras_vit.export.onnx",
    "export_saved_model": "keras_vit.export.saved_model",
    "write_server_config": "keras_vit.export.serving",
}

__all__ = [
    "IMAGENET_STATISTICS",
    "MLP",
    "SGD",
    "UNIT_RANGE",
    "AdamW",
    "AddPositionEmbedding",
    "AttentionPooling",
    "Augmentation",
    "BiTR50x1",
    "BiTR50x2",
    "BiTR50x3",
    "BiTR101x1",
    "BiTR101x3",
    "BiTR152x1",
    "BiTR152x2",
    "BiTR152x4",
    "BiTR200x3",
    "BiTRoot",
    "Card",
    "CheckpointError",
    "CheckpointMismatchError",
    "ClassToken",
    "Cluster",
    "DamagedStateError",
    "DistillationLoss",
    "DownloadError",
    "FileInfo",
    "Fitted",
    "GroupNorm",
    "ImageFiles",
    "ImageSet",
    "Interconnect",
    "LayerScale",
    "LoadReport",
    "MeanPooling",
    "Measurement",
    "Model",
    "NearDuplicate",
    "PatchDropout",
    "PatchEncoder",
    "PatchMask",
    "Preprocessing",
    "R26ViTB32",
    "R26ViTS32",
    "R50ViTB16",
    "R50ViTB32",
    "R50ViTL16",
    "R50ViTL32",
    "RViTTi16",
    "Recipe",
    "ResNetConfig",
    "ResNetStage",
    "ResNetStem",
    "ResidualUnit",
    "ResumeTraining",
    "ScalingPoint",
    "SelfAttention",
    "Shards",
    "SigmoidCrossentropy",
    "StateMismatchError",
    "StdConv2D",
    "StemRoot",
    "TokenMerging",
    "TokenPooling",
    "TrainingCost",
    "TrainingMemory",
    "Transfer",
    "TransformerBlock",
    "ViTB8",
    "ViTB14",
    "ViTB16",
    "ViTB32",
    "ViTConfig",
    "ViTCordonnier2",
    "ViTGiant14",
    "ViTGiantOpt16",
    "ViTGigantic14",
    "ViTH14",
    "ViTL14",
    "ViTL16",
    "ViTL32",
    "ViTM16",
    "ViTS8",
    "ViTS14",
    "ViTS16",
    "ViTS32",
    "ViTSo400m14",
    "ViTSo400m16",
    "ViTTi16",
    "View",
    "WarmUp",
    "adapt_model",
    "attention_maps",
    "attention_rollout",
    "attention_scores",
    "augreg_file_name",
    "build_contestant",
    "build_resnet",
    "build_vit",
    "check_cluster",
    "class_relevance",
    "count_macs",
    "count_parameters",
    "count_stages",
    "count_training_macs",
    "create_model",
    "device_days",
    "distillation_model",
    "eval_batches",
    "evaluate_few_shot",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "features_of",
    "fetch_weights",
    "few_shot_accuracy",
    "find_best_augreg",
    "find_config",
    "find_dataset",
    "find_near_duplicates",
    "find_recipe",
    "find_shards",
    "fine_tune",
    "fold_standardization",
    "from_pretrained",
    "gradient_bytes",
    "hyper_rule",
    "image_features",
    "inspect_file",
    "layerwise_decay",
    "list_datasets",
    "list_recipes",
    "list_variants",
    "list_weights",
    "litert_errors",
    "load_augreg_index",
    "load_weights",
    "mask_patches",
    "masked_patch_model",
    "mean_attention_distance",
    "measure_throughput",
    "nearest_neighbors",
    "overlay_attention",
    "parse_augreg_name",
    "patch_components",
    "patch_filters",
    "plot_attention",
    "plot_attention_distance",
    "plot_components",
    "plot_maps",
    "plot_patch_filters",
    "plot_position_similarity",
    "plot_scaling",
    "plot_throughput",
    "plot_training",
    "position_similarity",
    "pretrain",
    "principal_axes",
    "project_patches",
    "rank_regularizations",
    "read_arrays",
    "read_augreg_index",
    "read_dataset",
    "read_folder",
    "read_images",
    "read_measurements",
    "read_records",
    "read_shards",
    "read_tfds",
    "save_weights",
    "sent_bytes",
    "simulate_scaling",
    "token_norms",
    "train_batches",
    "training_cost",
    "training_exaflops",
    "training_memory",
    "transfer",
    "utilization",
    "verify_export",
    "view_of",
    "vit_layout_map",
    "write_measurements",
    "write_report",
    "write_server_config",
]

keep_buffers()  # before TensorFlow runs its first operation


def __getattr__(name: str) -> typing.Any:
    if name not in _NEED_TENSORFLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_NEED_TENSORFLOW[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
