from .prediction import network_size as network_size
from .prediction import paint_depth as paint_depth
from .prediction import predict_depth as predict_depth
from .prediction import with_depth_alone as with_depth_alone
