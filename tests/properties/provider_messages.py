"""What providers write, drawn at random: known blocks in every variant, blocks nobody knows, and nonsense."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import strategies as st

texts = st.text(max_size=20)
names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
ids = st.from_regex(r"[a-zA-Z0-9_.:-]{1,12}", fullmatch=True)
bodies = st.binary(max_size=12)
base64s = bodies.map(lambda body: base64.b64encode(body).decode())
urls = st.from_regex(r"https://[a-z]{1,8}\.example/[a-z]{0,6}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
raw_arguments = st.one_of(
    objects.map(lambda value: __import__("json").dumps(value)),
    st.sampled_from(["", "{", "[1]", '{"a": 1 }', "NaN", "null"]),
)
unknown = st.builds(
    lambda kind, rest: {**rest, "type": "x_" + kind}, names, st.dictionaries(names, json_values, max_size=3)
)


def fields(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


def just(**values: Any) -> dict[str, Any]:
    return {name: st.just(value) for name, value in values.items()}


# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────

cache = st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])
a_text = fields({**just(type="text"), "text": texts}, citations=st.none() | st.lists(objects, max_size=1))
a_source = st.one_of(
    fields({**just(type="base64", media_type="image/png"), "data": base64s}),
    fields({**just(type="url"), "url": urls}),
    fields({**just(type="file"), "file_id": ids}),
)
a_image = fields({**just(type="image"), "source": a_source}, cache_control=cache)
a_plain = fields({**just(type="text", media_type="text/plain"), "data": texts})
a_document = fields(
    {**just(type="document"), "source": a_source | a_plain}, title=texts, context=texts, cache_control=cache
)
a_thinking = st.one_of(
    fields({**just(type="thinking"), "thinking": texts, "signature": base64s}),
    fields({**just(type="redacted_thinking"), "data": base64s}),
)
a_use = fields({**just(type="tool_use"), "id": ids, "name": names, "input": objects}, cache_control=cache)
a_result = fields(
    {**just(type="tool_result"), "tool_use_id": ids},
    content=texts | st.lists(a_text | a_image, max_size=2),
    is_error=st.booleans(),
    cache_control=cache,
)
anthropic_messages = st.one_of(
    fields({**just(role="user"), "content": st.lists(a_text | a_image | a_document | a_result | unknown)}),
    fields(
        {**just(role="assistant"), "content": st.lists(a_thinking | a_text | a_use | unknown)},
        id=ids,
        type=st.just("message"),
        model=names,
        stop_reason=st.none() | names,
        usage=objects,
    ),
    fields({"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}),
)

# ── OpenAI Chat Completions ──────────────────────────────────────────────────────────────────────

c_text = fields({**just(type="text"), "text": texts})
c_image = fields(
    {
        **just(type="image_url"),
        "image_url": fields(
            {"url": urls | base64s.map("data:image/png;base64,{}".format)},
            detail=st.sampled_from(["low", "high"]),
        ),
    }
)
c_audio = fields(
    {
        **just(type="input_audio"),
        "input_audio": fields({"data": base64s, "format": st.sampled_from(["wav", "mp3"])}),
    }
)
c_file = fields(
    {
        **just(type="file"),
        "file": fields({"file_id": ids})
        | fields({"file_data": base64s.map("data:application/pdf;base64,{}".format), "filename": names}),
    }
)
c_call = st.one_of(
    fields(
        {**just(type="function"), "id": ids, "function": fields({"name": names, "arguments": raw_arguments})}
    ),
    fields({**just(type="custom"), "id": ids, "custom": fields({"name": names, "input": texts})}),
)
chat_messages = st.one_of(
    fields(
        {**just(role="user"), "content": texts | st.lists(c_text | c_image | c_audio | c_file | unknown)},
        name=names,
    ),
    fields(
        {**just(role="assistant"), "content": st.none() | texts | st.lists(c_text, min_size=1)},
        tool_calls=st.lists(c_call, min_size=1, max_size=3),
        refusal=st.none() | texts,
        annotations=st.lists(objects, max_size=1),
    ),
    fields({**just(role="tool"), "tool_call_id": ids, "content": texts | st.lists(c_text, max_size=2)}),
    fields({"role": st.sampled_from(["system", "developer"]), "content": texts}),
)

# ── OpenAI Responses ─────────────────────────────────────────────────────────────────────────────

r_input = st.one_of(
    fields({**just(type="input_text"), "text": texts}),
    fields({**just(type="input_image"), "image_url": urls}, detail=st.just("auto")),
    fields({**just(type="input_image"), "file_id": ids}),
    fields({**just(type="input_file"), "file_url": urls}, filename=names),
    fields({**just(type="input_file"), "file_id": ids}),
    fields(
        {**just(type="input_file"), "file_data": base64s.map("data:text/plain;base64,{}".format)},
        filename=names,
    ),
)
r_output = st.one_of(
    fields({**just(type="output_text"), "text": texts, "annotations": st.lists(objects, max_size=1)}),
    fields({**just(type="refusal"), "refusal": texts}),
)
responses_items = st.one_of(
    fields({**just(role="user"), "content": texts | st.lists(r_input, max_size=3)}, type=st.just("message")),
    fields(
        {**just(role="assistant", type="message"), "content": st.lists(r_output, max_size=3)},
        id=ids,
        status=st.just("completed"),
    ),
    fields({"role": st.sampled_from(["system", "developer"]), "content": texts}),
    fields(
        {**just(type="function_call"), "call_id": ids, "name": names, "arguments": raw_arguments},
        id=ids,
        status=st.just("completed"),
    ),
    fields({**just(type="custom_tool_call"), "call_id": ids, "name": names, "input": texts}, id=ids),
    fields(
        {
            **just(type="function_call_output"),
            "call_id": ids,
            "output": texts | st.lists(r_input, max_size=2),
        },
        id=ids,
    ),
    fields(
        {
            **just(type="reasoning"),
            "id": ids,
            "summary": st.lists(fields({**just(type="summary_text"), "text": texts}), max_size=2),
        },
        encrypted_content=st.none() | base64s,
        status=st.just("completed"),
    ),
    unknown,
)

# ── Google ───────────────────────────────────────────────────────────────────────────────────────

g_signed = {"thought_signature": bodies}
g_text = fields({"text": texts}, **g_signed)
g_thought = fields({"text": texts, **just(thought=True)}, **g_signed)
g_data = fields(
    {"inline_data": fields({**just(mime_type="image/png"), "data": bodies}, display_name=names)}
) | fields({"file_data": fields({"file_uri": urls, **just(mime_type="application/pdf")})})
g_call = fields({"function_call": fields({"name": names, "args": objects}, id=ids)}, **g_signed)
g_response = fields({"function_response": fields({"name": names, "response": objects}, id=ids)})
g_json_call = fields(
    {"functionCall": fields({"name": names, "args": objects}, id=ids)}, thoughtSignature=base64s
)
g_json = st.one_of(
    fields({"functionResponse": fields({"name": names, "response": objects})}),
    fields({"inlineData": fields({**just(mimeType="image/png"), "data": base64s})}),
)
g_code = fields({"executable_code": fields({"code": texts, **just(language="PYTHON")})})
google_contents = st.one_of(
    fields(
        {
            **just(role="user"),
            "parts": st.lists(g_text | g_data | g_response | g_json, min_size=1, max_size=4),
        }
    ),
    fields(
        {
            **just(role="model"),
            "parts": st.lists(g_thought | g_text | g_call | g_json_call | g_code, min_size=1, max_size=4),
        }
    ),
    fields({**just(role="system"), "parts": st.lists(g_text, min_size=1, max_size=2)}),
)

# ── LangChain ────────────────────────────────────────────────────────────────────────────────────

l_blocks = st.one_of(
    fields({**just(type="text"), "text": texts}),
    fields({**just(type="image", mime_type="image/png"), "base64": base64s}),
    fields({**just(type="image"), "url": urls}),
    fields({**just(type="reasoning"), "reasoning": texts}),
    a_thinking,
    unknown,
    texts,
)
l_common = {
    **just(additional_kwargs={}, response_metadata={}),
    "id": st.none() | ids,
    "name": st.none() | names,
}
l_calls = st.lists(fields({**just(type="tool_call"), "name": names, "args": objects, "id": ids}), max_size=2)
l_wrong = st.lists(
    fields({**just(type="invalid_tool_call", error=None), "name": names, "args": st.just("{"), "id": ids}),
    max_size=1,
)
l_usage = st.just({"input_tokens": 3, "output_tokens": 2, "total_tokens": 5})
l_content = texts | st.lists(l_blocks, max_size=3)


def _stored(kind: str, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    data = fields({"content": l_content, **just(type=kind), **l_common, **more})
    return fields({**just(type=kind), "data": data})


langchain_messages = st.one_of(
    _stored("human"),
    _stored("ai", tool_calls=l_calls, invalid_tool_calls=l_wrong, usage_metadata=st.none() | l_usage),
    _stored("system"),
    _stored(
        "tool",
        tool_call_id=ids,
        artifact=st.none() | objects,
        status=st.sampled_from(["success", "error"]),
    ),
)

MESSAGES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "anthropic": anthropic_messages,
    "openai.chat": chat_messages,
    "openai.responses": responses_items,
    "google": google_contents,
    "langchain": langchain_messages,
}

#: Dictionaries that use the providers' words without their grammar.
words = st.sampled_from(
    "role content type text parts data tool_calls function_call id call_id output user assistant model tool "
    "message reasoning thinking source image function_response summary".split()
)
nonsense = st.dictionaries(
    words,
    st.recursive(
        words | st.none() | st.integers() | bodies,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)
