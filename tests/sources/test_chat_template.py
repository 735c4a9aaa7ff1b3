"""Chat templates as transformers renders them, and templates that would never end."""

import json
import resource
import time
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sources import worlds
from tests.sources.worlds import one_line

from finitune.finding import UnreadableInput
from finitune.sources.data import tokenised
from finitune.sources.data.chat_render import CHARACTERS
from finitune.sources.data.chat_template import ChatTemplate, Refused
from finitune.sources.data.tokenizer import NoTokenizer, load

pytest.importorskip("tokenizers")

HELLO = [{"role": "user", "content": "what"}]


@pytest.fixture
def template_of(tmp_path):
    """Opens templates, and closes them in the end."""
    opened = []

    def open_(text=None, **given):
        words = load(worlds.add_tokenizer(tmp_path, **({"chat_template": text} if text is not None else given)))
        opened.append(ChatTemplate(words))
        return opened[-1]

    yield open_
    for template in opened:
        template.close()


def rendered(template, *conversations):
    return list(template.render(list(conversations) or [HELLO]))


def test_a_template_renders_messages(template_of):
    assert rendered(template_of())[0].startswith("<|im_start|>user what <|im_end|>")


def test_a_template_file_wins_over_the_config_and_may_mark_generations(tmp_path, template_of):
    text = "{{ bos_token }}{% for m in messages %}{% generation %}{{ m.content | tojson }}{% endgeneration %}"
    text += "{% break %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(text)
    assert rendered(template_of(), [{"role": "user", "content": "<é>"}, *HELLO]) == ['<s>"<é>"']


def test_of_several_templates_the_default_is_taken(tmp_path):
    worlds.add_tokenizer(tmp_path)
    config = {"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate(load(tmp_path))
    assert rendered(template, []) == ["d"]
    template.close()


def test_a_day_and_a_refusal_are_the_template_s_own(template_of):
    text = "{{ strftime_now('%Y') }}{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    first, second = rendered(template_of(text), HELLO, [{"role": "tool", "content": ""}])
    assert first == "2026"
    assert isinstance(second, Refused)
    assert str(second) == "no tools"


@pytest.mark.parametrize(
    "text", ["{{ messages.__class__.__mro__ }}", "{{ cycler.__init__.__globals__.os }}", "{{ messages.append(1) }}"]
)
def test_a_template_cannot_leave_its_sandbox(template_of, text):
    (answer,) = rendered(template_of(text))
    assert "unsafe" in str(answer) or "not safely" in str(answer)


def test_a_template_sees_neither_the_folder_nor_the_variables_of_the_user(tmp_path, template_of, monkeypatch):
    (tmp_path / "jinja2.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert rendered(template_of("fine")) == ["fine"]


def test_without_a_template_or_jinja_something_is_missing(tmp_path, monkeypatch):
    words = load(worlds.add_tokenizer(tmp_path, chat_template=None))
    with pytest.raises(NoTokenizer, match="no chat template"):
        ChatTemplate(words)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoTokenizer, match="jinja2 is not installed"):
        ChatTemplate(load(worlds.add_tokenizer(tmp_path)))


@pytest.mark.parametrize("text", ["{% for %}", "{{ 1 +* }}", "{{ 'a" + "(" * 5000, "{% macro %}", "{{ 1 // 0 }"])
def test_a_template_that_does_not_compile_is_unreadable(template_of, text):
    with pytest.raises(UnreadableInput, match="chat template") as caught:
        template_of(text)
    one_line(caught.value)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
ENDLESS = {
    "nested loops": LOOPS + "{% endfor %}{% endfor %}",
    "nested loops that speak": LOOPS + "x{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "a product": "{{ messages[0].content * 10 ** 10 }}",
    "a product of constants": "{{ 'a' * 10 ** 10 }}",
    "a power": "{{ (messages | length + 9) ** (10 ** 9) }}",
    "padding": "{{ messages[0].content.center(10 ** 10) }}",
    "a format": "{{ '%9999999999d' | format(messages | length) }}",
    "a long list": "{{ (messages * 10 ** 10) | length }}",
    "a macro of itself": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a macro that branches": "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a replacement": "{% set x = 'a' * 10 ** 5 %}{{ x.replace('a', x).replace('a', x) | length }}",
    "indented json": "{{ [[[1]]] | tojson(indent=10 ** 10) }}",
    "columns": "{{ messages | batch(10 ** 10, 'x') | list }}",
    "much text": "{% for a in range(99999) %}{{ 'word ' * 100 }}{% endfor %}",
    "a long chain": "{{ messages" + ".content" * 20_000 + " }}",
    "deep brackets": "{{ " + "[" * 2_000 + "]" * 2_000 + " }}",
}


def why_not(folder, data):
    """The one line that says why these data were not tokenised."""
    try:
        (left_out,) = tokenised.read(data, load(folder)).not_checked
    except UnreadableInput as error:
        return str(error)
    return left_out.why


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_template_that_would_never_end_is_ended_and_said_in_one_line(tmp_path, text):
    worlds.add_tokenizer(tmp_path, chat_template=text)
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"messages": HELLO}) + "\n")
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    said = why_not(tmp_path, data)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "chat template" in said
    assert "\n" not in said
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + time.process_time() - started < 5


def test_templates_that_are_slow_together_are_ended_too(tmp_path):
    busy = "{% for a in range(20000) %}{% for b in range(100) %}{% endfor %}{% endfor %}"
    worlds.add_tokenizer(tmp_path, chat_template=busy)
    data = tmp_path / "d.jsonl"
    data.write_text((json.dumps({"messages": HELLO}) + "\n") * 2000)
    assert "the chat template takes more than 1 s" in why_not(tmp_path, data)


def test_a_long_conversation_may_become_long(template_of):
    long = "word " * CHARACTERS
    (text,) = rendered(template_of("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"), [
        {"role": "user", "content": long}
    ])  # fmt: skip
    assert len(text) == 2 * len(long)


PIECES = """
{% for a in range(9999) %}|{% for a in messages %}|{% endfor %}|{% if a %}|{% endif %}|{{ a * 99999 }}|{{ a }}|{#|
{% set a = 'x' * 9999 %}|{% set a = a ~ a %}|{% macro f(a) %}|{% endmacro %}|{{ f(a) }}|{{ messages[0].content.|
center(10 ** 10)|) }}|{% generation %}|{% endgeneration %}|{{ raise_exception(a) }}|{% include 'x' %}|{% break %}|
{% import 'x' as y %}|{{ cycler(a).next }}|{{ lipsum(n=9999) }}|{{ joiner }}
""".replace("\n", "").split("|")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text(max_size=60)))
def test_any_template_renders_is_refused_or_is_ended(tmp_path, text):
    words = load(worlds.add_tokenizer(tmp_path, chat_template=text))
    with suppress(UnreadableInput, NoTokenizer):
        template = ChatTemplate(words)
        with closing(template):
            assert all(isinstance(answer, str | Refused) for answer in template.render([HELLO, []]))
