"""Models of several kinds train under a cap to the same bits."""


def test_mlp(compare):
    compare("mlp", 12)


def test_gpt(compare):
    compare("gpt", 11)


def test_gpt_with_deterministic_algorithms(compare):
    compare("gpt", 11, deterministic=True)


def test_gpt_on_two_threads(compare):
    compare("gpt", 11, threads=2)


def test_dropout(compare):
    compare("gpt", 11, arguments={"dropout": 0.2})


def test_resnet_with_batch_norm(compare):
    compare("resnet", 3)


def test_experts_with_ragged_routing(compare):
    # Shapes change from step to step, so no plan lasts.
    compare("experts", 12, settles=False)
