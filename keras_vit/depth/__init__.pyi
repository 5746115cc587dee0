from .networks import load_depth_anything as load_depth_anything
from .networks import load_dpt as load_dpt
