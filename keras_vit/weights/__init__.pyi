from .image_gpt import load_image_gpt as load_image_gpt
from .image_gpt import save_image_gpt as save_image_gpt
from .inspection import FileInfo as FileInfo
from .inspection import inspect_file as inspect_file
from .load import LoadReport as LoadReport
from .load import load_weights as load_weights
from .save import save_weights as save_weights
