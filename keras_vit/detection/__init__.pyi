from .boxes import BoxSet as BoxSet
from .boxes import box_batches as box_batches
from .boxes import read_boxes as read_boxes
from .evaluation import DetectionResult as DetectionResult
from .evaluation import evaluate_boxes as evaluate_boxes
from .model import build_detector as build_detector
