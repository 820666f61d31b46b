"""The stages in their order: what each is called, how it runs, and what its result depends on."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from retool_mcore.coldstart import dedup, verify
from retool_mcore.coldstart.client import CallCache, Client
from retool_mcore.coldstart.config import Config, Model
from retool_mcore.coldstart.dedup import Decontaminate
from retool_mcore.coldstart.execution import Executor
from retool_mcore.coldstart.normalise import check_form, normalise
from retool_mcore.coldstart.rows import Outcome, Row
from retool_mcore.coldstart.select import Selector
from retool_mcore.coldstart.source import identity, read
from retool_mcore.sandbox.create import create_sandbox, probe

Parallel = Callable[[Callable, Iterable], Iterator]


@dataclass(frozen=True)
class Stage:
    """One of `read` (outcomes from the source), `whole` (rows compared with each other), `each` (one row, in processes)
    and `wait` (one row, in tasks: model calls, sandbox) is set. `depends` is what the stage's result follows
    from, apart from its input; `check` raises UserError when the stage cannot work."""

    name: str
    depends: Any
    read: Callable[[], Iterator[Outcome]] | None = None
    whole: Callable[[dedup.Rows, Parallel], Iterator[Outcome]] | None = None
    each: Callable[[Row], Row] | None = None
    wait: Callable[[Row], Awaitable[Row]] | None = None
    concurrency: int = 1
    check: Callable[[], Awaitable[None] | None] | None = None


class Services:
    """Services that the stages use in addition to their row; none starts before it is requested."""

    def __init__(self, config: Config, cache: CallCache):
        self.rewriter = Client(config.rewrite.model, "rewrite", cache)
        self.judge = Client(config.judge.model, "judge", cache) if config.judge.model else None
        self.sandbox = create_sandbox(config.execution.sandbox)

    def calls(self, cache: CallCache) -> dict[str, dict]:
        """The cache's totals of each purpose, with `cached`: the replies of this start that it held already."""
        totals = cache.totals()
        clients = [client for client in (self.judge, self.rewriter) if client and client.purpose in totals]
        return {client.purpose: totals[client.purpose] | {"cached": client.cached} for client in clients}

    async def close(self) -> None:
        await self.sandbox.close()
        for client in (self.rewriter, self.judge):
            if client is not None:
                with suppress(RuntimeError):
                    await client.close()


def build(config: Config, services: Services, tokenizer: str) -> list[Stage]:
    """The stages of `config`, in order. `tokenizer`: folder or hub name of select.tokenizer."""
    execution, copies, model = config.execution, config.dedup, config.rewrite.model
    decontaminate = Decontaminate(config.decontaminate.files, config.decontaminate.ngram)
    selector = Selector(config.select, tokenizer)
    selectable = None if config.select.tokenizer == "tiny" else selector.prepare
    stages = [
        Stage("read", [config.source.model_dump(), identity(config.source.path)], read=partial(read, config.source)),
        Stage("normalise", [], each=normalise),
        Stage("exact duplicates", copies.per_problem, whole=lambda rows, _: dedup.exact(rows, copies.per_problem)),
        Stage(
            "near duplicates",
            [copies.jaccard, copies.words],
            whole=lambda rows, parallel: dedup.near(rows, copies.jaccard, copies.words, parallel),
        ),
        Stage(
            "decontaminate",
            [config.decontaminate.model_dump(), [identity(file.path) for file in config.decontaminate.files]],
            each=decontaminate,
            check=decontaminate.prepare,
        ),
        Stage("rule verification", [], each=verify.check_rule),
    ]
    if services.judge:
        judge = config.judge.model_dump() | {"model": _sampling(config.judge.model)}
        stages.append(
            Stage(
                "judge verification",
                [judge, verify.JUDGE_INSTRUCTION],
                wait=partial(verify.check_by_judge, config.judge, services.judge),
                concurrency=config.judge.model.concurrency,
                check=services.judge.check,
            )
        )
    return stages + [
        Stage(
            "rewrite",
            [_sampling(model), config.rewrite.instruction or verify.REWRITE_INSTRUCTION],
            wait=partial(verify.rewrite, config.rewrite, services.rewriter),
            concurrency=model.concurrency,
            check=services.rewriter.check,
        ),
        Stage("format verification", [], each=check_form),
        Stage(
            "execution",
            execution.model_dump() | {"concurrency": None},
            wait=Executor(execution, services.sandbox),
            concurrency=execution.concurrency,
            check=partial(probe, services.sandbox),
        ),
        Stage("answer verification", [], each=verify.check_answer),
        Stage("selection", config.select.model_dump(), each=selector, check=selectable),
    ]


def _sampling(model: Model) -> dict:
    """The settings that a reply follows from: neither where the server is nor how fast it is asked."""
    return model.model_dump(include={"name", "temperature", "top_p", "max_tokens", "seed", "structured"})
