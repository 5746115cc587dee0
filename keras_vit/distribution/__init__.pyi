from .cluster import Cluster as Cluster
from .cluster import check_cluster as check_cluster
from .mesh_layouts import vit_layout_map as vit_layout_map
