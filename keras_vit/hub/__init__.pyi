from .card import Card as Card
from .catalog import fetch_weights as fetch_weights
from .catalog import list_weights as list_weights
from .upload import push as push
