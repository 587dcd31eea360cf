"""What a Transformer can be asked for, one module a task."""

from __future__ import annotations

from handlers.base import LoadContext
from handlers.tasks import answering, classification, embeddings, generation, task, tokens

_TASKS: dict[str, type[task.Task]] = {
    "sequence-classification": classification.SequenceClassification,
    "token-classification": tokens.TokenClassification,
    "question-answering": answering.QuestionAnswering,
    "embeddings": embeddings.Embeddings,
    "text-generation": generation.TextGeneration,
}


def create(name: str, context: LoadContext) -> task.Task:
    """The task of that name, loaded."""
    return _TASKS[name](context)
