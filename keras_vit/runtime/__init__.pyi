from .model import Model as Model
from .processors import keep_buffers as keep_buffers
