"""Several processes train one model, each under a cap of its own."""


def test_ddp(compare):
    compare("replicated", 8, ranks=2)


def test_fsdp2(compare):
    compare("sharded", 8, ranks=2)
