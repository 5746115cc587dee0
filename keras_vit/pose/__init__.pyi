from .networks import load_vitpose as load_vitpose
