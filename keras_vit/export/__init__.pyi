from .fastest import OptimizedModel as OptimizedModel
from .fastest import optimize as optimize
from .litert import export_litert as export_litert
from .litert import litert_errors as litert_errors
from .onnx import export_onnx as export_onnx
from .saved_model import export_saved_model as export_saved_model
from .serving import write_server_config as write_server_config
from .verify import verify_export as verify_export
