from sslengine.config.facts import RunFacts, run_facts, views_per_image
from tests.config.recipes import resolved


def test_facts_of_a_config() -> None:
    facts = run_facts(resolved(DISTRIBUTED__NUM_NODES=2, DISTRIBUTED__NUM_PROC_PER_NODE=3).config)
    assert facts == RunFacts(
        world_size=6,
        batch_size_per_replica=4,
        views_per_image=2,
        heads=(("mlp", {"dims": [32, 8]}),),
        collator="simclr_collator",
        label_type="sample_index",
    )
    assert facts.global_batch_size == 24
    assert facts.with_data(100).num_train_samples == 100


def test_the_modules_of_nested_heads() -> None:
    heads = [[["mlp", {"dims": [64, 8]}], ["identity", {}]], ["mlp", {"dims": [64, 2]}]]
    facts = run_facts(resolved(MODEL__HEAD={"PARAMS": heads}).config)
    assert [name for name, _ in facts.heads] == ["mlp", "identity", "mlp"]
    assert facts.head("mlp") == {"dims": [64, 8]}
    assert facts.head("eval_mlp") == {}


def test_views_multiply_and_most_transforms_make_none() -> None:
    assert views_per_image([]) == 1
    assert views_per_image([{"name": "ToTensor"}, {"name": "ImgReplicatePil", "num_times": 3}]) == 3
    replicate = {"name": "ImgReplicatePil", "indices": [0]}
    assert views_per_image([replicate, replicate]) == 4
