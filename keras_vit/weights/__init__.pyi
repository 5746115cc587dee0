from .inspection import FileInfo as FileInfo
from .inspection import inspect_file as inspect_file
from .load import LoadReport as LoadReport
from .load import load_weights as load_weights
from .save import save_weights as save_weights
