from .augreg import augreg_file_name as augreg_file_name
from .augreg import find_best_augreg as find_best_augreg
from .augreg import parse_augreg_name as parse_augreg_name
from .augreg import read_augreg_index as read_augreg_index
from .card import Card as Card
from .catalog import fetch_weights as fetch_weights
from .catalog import list_weights as list_weights
from .catalog import load_augreg_index as load_augreg_index
