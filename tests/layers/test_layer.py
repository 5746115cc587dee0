from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.layer import Layer
from keras_vit.layers.pooling import MeanPooling


class Scaled(MeanPooling):
    def __init__(self, factor=2.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor


def test_the_configuration_is_the_arguments_of_the_constructor_and_of_its_bases():
    config = Scaled(3.0, num_prefix_tokens=2, name="pooling").get_config()
    assert config["factor"] == 3.0 and config["num_prefix_tokens"] == 2
    assert config["name"] == "pooling" and "kwargs" not in config


def test_a_subclass_may_write_an_argument_that_it_keeps_elsewhere():
    class Kept(Layer):
        def __init__(self, number, **kwargs):
            super().__init__(**kwargs)
            self._number = number

        def get_config(self):
            return {**super().get_config(), "number": self._number}

    assert Kept(5).get_config()["number"] == 5


def test_options_of_a_block_are_written_as_its_keywords():
    config = TransformerBlock(2, 8, gelu="exact", stochastic_depth_rate=0.1).get_config()
    assert config["gelu"] == "exact" and config["stochastic_depth_rate"] == 0.1
    assert config["num_heads"] == 2
    assert "options" not in config
