from .attention import attention_scores as attention_scores
from .attention import geometry_of as geometry_of
from .feature_extraction import features_of as features_of
from .feature_extraction import head_input_stage as head_input_stage
from .feature_extraction import stage_names as stage_names
from .resnet import build_resnet as build_resnet
from .resnet import fold_standardization as fold_standardization
from .vit import build_vit as build_vit
