"""Each task with a tiny seeded model and a tokenizer that are made here: nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from handlers import batches, errors, items
from handlers.base import LoadContext
from handlers.transformer import Transformer
from tests.support.tiny_models import LENGTH, bert, gpt

MakeItem = Callable[..., items.Item]


@pytest.fixture
def served() -> Callable[..., batches.Batcher]:
    def serve(folder: Path, task: str, **options: Any) -> batches.Batcher:
        handler = Transformer()
        handler.load(LoadContext(folder=folder, model_file=folder, options={"task": task, **options}))
        return batches.Batcher(handler=handler, model="m", version=1, max_response_bytes=1 << 20)

    return serve


Served = Callable[..., batches.Batcher]


def answers(batcher: batches.Batcher, *given: items.Item) -> list[Any]:
    responses = batcher.answer(given)
    assert [response.status for response in responses] == [200] * len(given), responses
    return [json.loads(response.body) for response in responses]


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return bert(
        tmp_path,
        transformers.BertForSequenceClassification,
        id2label={0: "bad", 1: "good"},
        label2id={"bad": 0, "good": 1},
    )


def test_a_text_is_classified_as_transformers_does_alone_and_beside_longer_texts(
    classifier: Path, served: Served, item: MakeItem
) -> None:
    batcher = served(classifier, "sequence-classification")
    (alone,) = answers(batcher, item(b"a good ship"))
    beside, _ = answers(batcher, item(b"a good ship"), item(b"the ship sails from its slipway to sea"))
    model = transformers.BertForSequenceClassification.from_pretrained(classifier).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier)
    with torch.inference_mode():
        scores = model(**tokenizer("a good ship", return_tensors="pt")).logits.softmax(-1)[0].tolist()
    for answer in (alone, beside):
        assert {each["label"]: each["score"] for each in answer["scores"]} == pytest.approx(
            {"bad": scores[0], "good": scores[1]}, abs=1e-5
        )
        assert answer["label"] == answer["scores"][0]["label"]
        assert answer["truncated"] is False


def test_a_cut_text_is_told_or_refused_as_the_option_says(classifier: Path, served: Served, item: MakeItem) -> None:
    long = b"ship " * 100
    short, cut = answers(served(classifier, "sequence-classification"), item(b"ship"), item(long))
    assert (short["truncated"], cut["truncated"]) == (False, True)
    strict = served(classifier, "sequence-classification", truncation="error")
    kept, refused = strict.answer([item(b"ship"), item(long)])
    assert (kept.status, refused.status) == (200, 400)
    assert json.loads(refused.body)["limit_tokens"] == LENGTH


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"", "text/plain", 400),
        (b" \n ", "text/plain", 400),
        (b"x" * 1_000_000, "text/plain", 413),
        (b"\xff\xfe\xfd", "text/plain", 400),
        (b"{", "application/json", 400),
        (b"5", "application/json", 400),
        (b'{"words": "x"}', "application/json", 400),
        (b'{"text": ["x"]}', "application/json", 400),
    ],
)
def test_a_bad_text_gets_its_own_error(
    body: bytes, content_type: str, status: int, classifier: Path, served: Served, item: MakeItem
) -> None:
    good, bad = served(classifier, "sequence-classification").answer([item(b"ship"), item(body, content_type)])
    assert good.status == 200
    assert bad.status == status
    assert bad.body.startswith(errors.PREFIX)


def test_entities_join_words_and_point_into_the_original_text(tmp_path: Path, served: Served, item: MakeItem) -> None:
    labels = ["O", "B-PER", "I-PER", "B-LOC"]
    folder = bert(tmp_path, transformers.BertForTokenClassification, id2label=dict(enumerate(labels)))
    batcher = served(folder, "token-classification")
    task: Any = batcher.handler._task  # pyright: ignore
    told = {"anna": 1, "lives": 2, "bergen": 3}

    def logits(**inputs: Any) -> Any:
        names = task.tokenizer.convert_ids_to_tokens(inputs["input_ids"].flatten().tolist())
        chosen = torch.tensor([told.get(name, 0) for name in names]).view(inputs["input_ids"].shape)
        return transformers.modeling_outputs.TokenClassifierOutput(logits=torch.nn.functional.one_hot(chosen, 4) * 9.0)

    task.engine.run = logits
    text = "Où?  ANNA lives in Bergens sea"
    (answer,) = answers(batcher, item(text.encode()))
    assert [(each["type"], each["text"]) for each in answer["entities"]] == [("PER", "ANNA lives"), ("LOC", "Bergens")]
    assert all(text[each["start"] : each["end"]] == each["text"] for each in answer["entities"])


def test_an_answer_is_a_span_of_the_context_as_sent(tmp_path: Path, served: Served, item: MakeItem) -> None:
    batcher = served(bert(tmp_path, transformers.BertForQuestionAnswering), "question-answering")
    context = "ANNA  lives in  Bergen"
    request = json.dumps({"question": "who lives in bergen", "context": context}).encode()
    over_grpc = items.of_request({"question": b"who lives in bergen", "context": context.encode()}, {})
    answer, same, other = answers(
        batcher, item(request, "application/json"), over_grpc,
        item(b'{"question": "where", "context": "it is good"}', "application/json"),
    )  # fmt: skip
    assert answer == pytest.approx(same)
    assert context[answer["start"] : answer["end"]] == answer["answer"] != ""
    assert other["answer"] in "it is good"
    assert 0 < answer["score"] <= 1


@pytest.mark.parametrize(
    "body",
    [b'{"question": "who"}', b'{"question": "", "context": "x"}', b'{"question": 1, "context": "x"}', b"[]", b"{"],
)
def test_a_question_without_its_context_is_a_400(body: bytes, tmp_path: Path, served: Served, item: MakeItem) -> None:
    batcher = served(bert(tmp_path, transformers.BertForQuestionAnswering), "question-answering")
    (response,) = batcher.answer([item(body, "application/json")])
    assert response.status == 400


def test_a_context_beyond_the_models_limit_is_read_up_to_it_and_the_answer_says_so(
    tmp_path: Path, served: Served, item: MakeItem
) -> None:
    batcher = served(bert(tmp_path, transformers.BertForQuestionAnswering), "question-answering")
    request = json.dumps({"question": "who", "context": "ship " * 60}).encode()
    (answer,) = answers(batcher, item(request, "application/json"))
    assert answer["truncated"] is True


def test_embeddings_ignore_padding_and_have_length_one(tmp_path: Path, served: Served, item: MakeItem) -> None:
    batcher = served(bert(tmp_path, transformers.BertModel), "embeddings")
    (alone,) = answers(batcher, item(b"a ship"))
    beside, _ = answers(batcher, item(b"a ship"), item(b"the ship sails from its slipway to sea"))
    assert beside["embedding"] == pytest.approx(alone["embedding"], abs=1e-5)
    assert sum(value * value for value in alone["embedding"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_each_pooling_is_what_its_name_says(pooling: str, tmp_path: Path, served: Served, item: MakeItem) -> None:
    folder = bert(tmp_path, transformers.BertModel)
    (answer,) = answers(served(folder, "embeddings", pooling=pooling, normalize=False), item(b"a good ship"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        states = transformers.BertModel.from_pretrained(folder).eval()(**tokenizer("a good ship", return_tensors="pt"))[
            0
        ][0]
    wanted = {"mean": states.mean(0), "cls": states[0], "max": states.amax(0)}[pooling]
    assert answer["embedding"] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_a_sentence_transformers_folder_decides_pooling_normalization_and_length(
    tmp_path: Path, served: Served, item: MakeItem
) -> None:
    folder = bert(tmp_path, transformers.BertModel)
    (folder / "modules.json").write_text(
        json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "p"}])
    )
    (folder / "p").mkdir()
    (folder / "p" / "config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    (told,) = answers(served(folder, "embeddings"), item(b"the ship sails from its slipway"))
    (wanted,) = answers(
        served(folder, "embeddings", pooling="cls", normalize=False, max_length=6),
        item(b"the ship sails from its slipway"),
    )
    assert told == wanted
    assert told["truncated"] is True


def test_oip_texts_are_answered_with_one_tensor(tmp_path: Path, served: Served, item: MakeItem) -> None:
    batcher = served(bert(tmp_path, transformers.BertModel), "embeddings")
    request = {"id": "7", "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a ship", "sea"]}]}
    (answer,) = answers(batcher, item(json.dumps(request).encode(), "application/json", slipway_protocol="oip-v2"))
    (output,) = answer["outputs"]
    assert (answer["id"], output["name"], output["datatype"], output["shape"]) == ("7", "embedding", "FP32", [2, 16])


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt(tmp_path_factory.mktemp("gpt"))


def test_greedy_generation_is_what_transformers_generates_also_beside_longer_prompts(
    generator: Path, served: Served, item: MakeItem
) -> None:
    batcher = served(generator, "text-generation", max_new_tokens=8)
    (alone,) = answers(batcher, item(b"the ship"))
    beside, _ = answers(batcher, item(b"the ship"), item(b"a much longer prompt than that"))
    model = transformers.GPT2LMHeadModel.from_pretrained(generator).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(generator)
    inputs = tokenizer("the ship", return_tensors="pt")
    made = model.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0)[
        0, inputs["input_ids"].shape[1] :
    ]
    assert alone["text"] == tokenizer.decode(made, skip_special_tokens=True)
    assert beside == alone
    assert alone["tokens"] == len(made)


def test_streamed_pieces_join_to_the_whole_text(generator: Path, served: Served, item: MakeItem) -> None:
    batcher = served(generator, "text-generation", max_new_tokens=12)
    pieces: dict[int, list[Any]] = {0: [], 1: []}

    def send(index: int, data: bytes, content_type: str) -> None:
        assert content_type == "text/event-stream"
        pieces[index].append(json.loads(data.removeprefix(b"data: ")))

    requests = [
        item(json.dumps({"text": text, "stream": True, "max_new_tokens": count}).encode(), "application/json")
        for text, count in (("the ship", 12), ("the ship", 3))
    ]
    responses = batcher.answer(requests, send=send)
    for index, response in enumerate(responses):
        last = json.loads(response.body.removeprefix(b"data: "))
        joined = "".join(piece["token"] for piece in pieces[index])
        assert last["text"].startswith(joined)
        assert last["text"][len(joined) :].strip("\ufffd") == ""
        assert last["finish_reason"] in ("stop", "length")
    assert len(pieces[1]) <= 3


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"top_p": 2}, {"max_new_tokens": 1000}, {"max_new_tokens": "many"}, {"temperature": True}],
)
def test_a_setting_out_of_range_is_a_400_that_names_it(
    settings: dict[str, Any], generator: Path, served: Served, item: MakeItem
) -> None:
    batcher = served(generator, "text-generation", max_new_tokens=8)
    (response,) = batcher.answer([item(json.dumps({"text": "x", **settings}).encode(), "application/json")])
    assert response.status == 400
    assert next(iter(settings)) in json.loads(response.body)["detail"]


def test_sampling_stays_within_the_nucleus(generator: Path, served: Served, item: MakeItem) -> None:
    batcher = served(generator, "text-generation", max_new_tokens=4)
    request = json.dumps({"text": "x", "temperature": 0.7, "top_p": 1e-9}).encode()
    greedy, sampled = answers(batcher, item(b"x"), item(request, "application/json"))
    assert sampled["text"] == greedy["text"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"task": "poetry"}, "task"), ({"task": "embeddings", "max_length": 1000}, "max_length"),
     ({"task": "embeddings", "truncation": "maybe"}, "truncation"),
     ({"task": "embeddings", "polling": "cls"}, "polling"),
     ({"task": "embeddings", "pooling": "sum"}, "pooling")],
)  # fmt: skip
def test_a_wrong_option_is_named_at_load(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = bert(tmp_path, transformers.BertModel)
    with pytest.raises(errors.LoadError, match=words):
        Transformer().load(LoadContext(folder=folder, model_file=folder, options=options))


def test_a_folder_with_remote_code_is_not_run(tmp_path: Path) -> None:
    folder = bert(tmp_path, transformers.BertModel)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(errors.LoadError):
        Transformer().load(LoadContext(folder=folder, model_file=folder, options={"task": "embeddings"}))
    assert not (tmp_path / "ran").exists()
