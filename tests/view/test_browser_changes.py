"""What the same problems' answers have become, the list's columns and formulas, in a browser."""

from made_run import add_evaluation, make_run, record
from shown_run import COUNT, MARKS, ROWS, TABLE, hash_of, look, shown

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step

pytestmark = MARKS
HEADS = "[...document.querySelectorAll('.head > *')].map(head => head.innerText)"


def spelt(text: str) -> list[int]:
    return build_tokenizer().encode(text, add_special_tokens=False).ids


def test_problems_that_recur_are_compared_before_and_since_a_step(tmp_path):
    run = make_run(tmp_path / "run")
    for step, rights in ((11, (0, 0, 1, 1)), (14, (1, 1, 1, 0))):  # of problem 50 twice, then of problem 51
        own = [record(step, row, index=50 + row // 2, acc=float(right)) for row, right in enumerate(rights)]
        write_step(run / "rl" / "trajectories", step, own)
    write_step(run / "rl" / "trajectories", 15, [record(15, 0, index=70)])  # not seen before

    async def body():
        async with shown(run, page="/changes") as tab:
            assert await tab.js(COUNT) == "Choose what to compare with: another evaluation, or a step."
            await tab.go("#/changes?since=12")
            await tab.until(COUNT + ".startsWith('2 problems')")
            assert await tab.js(COUNT) == "2 problems on both sides: 1 better, 1 worse, 0 as before"
            rows = await tab.js(TABLE)
            assert [row[:3] for row in rows] == [
                ["▲ +100 %", "0 % of 2", "100 % of 2"],
                ["▼ -50 %", "100 % of 2", "50 % of 2"],
            ]
            await tab.js("document.querySelectorAll('tbody tr')[1].querySelectorAll('a')[1].click(); 1")
            await tab.until("location.hash.includes('/list')")
            await tab.until(COUNT + ".startsWith('2 of ')")
            assert "problem=arithmetic #51" in (await hash_of(tab)).replace("+", " ")

    look(body)


def test_two_evaluations_are_compared(tmp_path):
    run = add_evaluation(add_evaluation(make_run(tmp_path / "run"), "sft", step=1), "rl", step=2)

    async def body():
        async with shown(run, page="/changes?part=eval/rl&before=eval/sft") as tab:
            await tab.until(COUNT + ".includes('on both sides')")
            assert "0 better, 0 worse" in await tab.js(COUNT)

    look(body)


def test_columns_are_chosen_and_kept_in_the_address(tmp_path):
    async def body():
        async with shown(make_run(tmp_path / "run"), page="/list") as tab:
            assert "seconds" in await tab.js(HEADS) and "data source" not in await tab.js(HEADS)
            for name in ("seconds", "data_source"):
                await tab.js(f"document.getElementById('column-{name}').click(); 1")
                await tab.until(f"location.hash.includes({'source' if name != 'seconds' else 'turns'!r})")
                await tab.until("document.body.dataset.ready === location.hash")
            heads = await tab.js(HEADS)
            assert "seconds" not in heads and heads[-1] == "data source"
            assert (await tab.js(ROWS))[0].endswith("|arithmetic")
            await tab.js("document.getElementById('column-seconds').click(); 1")
            await tab.until("location.hash.includes('seconds')")
            await tab.js("document.getElementById('column-data_source').click(); 1")
            await tab.until("!location.hash.includes('columns')")  # as at first

    look(body)


def test_formulas_are_drawn_and_hostile_ones_stay_text(tmp_path):
    run = make_run(tmp_path / "run")
    texts = [r"what is $\frac{1}{2}+x$, for $5 and $6?", r"$\href{javascript:window.bad=1}{x}$ $\undefined$ \(x^2\)"]
    made = [record(3, row, index=60 + row, prompt_ids=spelt(text)) for row, text in enumerate(texts)]
    write_step(run / "rl" / "trajectories", 3, made)

    async def body():
        async with shown(run, page="/t/3/0") as tab:
            question = "document.querySelector('.question')"
            assert await tab.js(f"{question}.querySelectorAll('math mfrac').length") == 1
            assert "for $5 and $6?" in await tab.js(f"{question}.innerText")
            await tab.js("document.getElementById('maths').click(); 1")
            assert (
                await tab.js("document.querySelectorAll('.tokens math').length") >= 2
            )  # the prompt's and the answer's
            await tab.go("#/t/3/1")
            assert await tab.js("document.querySelectorAll('.question a, .tokens a').length") == 0
            assert r"$\undefined$" in await tab.js(f"{question}.innerText")
            assert await tab.js(f"{question}.querySelectorAll('math msup').length") == 1

    look(body)
