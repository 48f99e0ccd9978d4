"""Writes chat_templates.json: texts rendered by the real jinja2, as transformers sets it up.

jinja2 3.1.6, ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True), loop controls,
tojson = json.dumps(ensure_ascii=False), raise_exception, strftime_now standing at 2024-02-29
12:34:56 UTC (transformers 5.24, chat_template_utils.py). Templates here were written for this
test, after the style of the families they are named for. Expected text null: jinja2 raised.
Run: python3 -m venv v && v/bin/pip install jinja2==3.1.6
     v/bin/python make_chat_templates.py > chat_templates.json
"""
import json
from datetime import datetime, timezone

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(1709210096, timezone.utc).strftime(f)
    return env


QWEN3 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call one or more functions.\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nReply with {\"name\": <function-name>, \"arguments\": <args-json-object>}<|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

QWEN35 = r"""{%- macro render_content(content, strict=false) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or item.type == 'image' %}
                {{- raise_exception('No images here.') }}
            {%- elif 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('Unexpected item type in content.') }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('Unexpected content type.') }}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('No messages provided.') }}
{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}
        {{- "\n" ~ tool|tojson }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = render_content(message.content, true)|trim %}
    {%- if message.role == "system" %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
        {{- '<|im_start|>system\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
            {{- '\n<function=' + call.name + '>' }}
            {%- if call.arguments is defined %}
                {%- for args_name, args_value in call.arguments|items %}
                    {{- '\n<parameter=' + args_name + '>\n' }}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                    {{- args_value }}
                    {{- '\n</parameter>' }}
                {%- endfor %}
            {%- endif %}
            {{- '\n</function>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- elif message.role == "user" %}
        {{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n' }}
{%- endif %}
"""

MIXTRAL = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\n\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}
        {{- " " + message["content"] + eos_token}}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""

LLAMA = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Wetter für <Ort> & \"Zeit\"'s 漢字 😀\n",
    "parameters": {"type": "object", "properties": {
        "zone": {"type": "string"}, "alpha": {"type": ["number", "null"], "minimum": 0.5, "maximum": 1e16},
        "items": {"type": "array", "items": {"type": "integer"}, "default": []}},
        "required": ["zone"], "additionalProperties": False}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "weather", "arguments": {
        "zone": "Zürich", "alpha": 1.0, "deep": {"b": [1, {"a": None}], "a": True}, "flag": True, "n": 3}}}]}
TALK = [
    {"role": "system", "content": "Be brief.  "}, {"role": "user", "content": "Weather?"}, CALL,
    {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "warm"},
    {"role": "assistant", "content": "<think>\nIt is sunny.\n</think>\n\nSunny."},
    {"role": "user", "content": "Thanks é"}]
THINK = [
    {"role": "user", "content": "One"},
    {"role": "assistant", "content": "<think>\nfirst\n</think>\n\nAnswer one"},
    {"role": "user", "content": "Two"},
    {"role": "assistant", "reasoning_content": "second\n", "content": "\n\nAnswer two"}]
AGENT = TALK[:5]
PARTS = [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b "}]}]
PLAIN = [{"role": "user", "content": "Hi"}]
TURNS = PLAIN + [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WHOLE = [
    ("qwen3", QWEN3, [
        (PLAIN, True, {}), (PLAIN, True, {"enable_thinking": False}), (PLAIN, True, {"enable_thinking": True}),
        (TALK, True, {"tools": [TOOL, TOOL]}), (TALK, False, {}), (THINK, False, {}), (AGENT, True, {"tools": [TOOL]}),
        (THINK[:3], True, {})]),
    ("qwen3.5", QWEN35, [
        (PLAIN, True, {}), (PLAIN, True, {"enable_thinking": False}), (TALK, True, {"tools": [TOOL]}),
        (PARTS, True, {}), ([], True, {}), (PLAIN + [{"role": "system", "content": "late"}], True, {}),
        ([{"role": "user", "content": [{"type": "image"}]}], True, {}), ([{"role": "robot", "content": ""}], False, {})]),
    ("mixtral", MIXTRAL, [
        (TURNS, False, {}), ([{"role": "system", "content": "S"}] + TURNS, False, {}), (PLAIN + PLAIN, False, {})]),
    ("llama", LLAMA, [
        (TURNS, True, {}), (TALK[:5], True, {"tools": [TOOL]}), (TURNS, False, {"date_string": "1 Jan 2000"}),
        (PLAIN, True, {"custom_tools": [TOOL]})]),
]

# Small templates, each for one habit of jinja2 or Python.
SNIPPETS = [
    "{{ true }} {{ false }} {{ none }} {{ 1 }} {{ 1.0 }} {{ 2.5 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 5 }}",
    "[{{ nothing }}]{% if nothing %}a{% else %}b{% endif %}{{ nothing is defined }}{{ nothing|default('d') }}",
    "{% for x in nothing %}{{ x }}{% else %}empty{% endfor %}",
    "{{ nothing.more }}", "{{ 'a' + nothing }}", "{{ 'a' ~ nothing ~ 1 ~ none ~ true }}",
    "{{ '  x y '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abc'.lstrip('ab') }}|{{ 'abc'.rstrip('bc') }}",
    "{{ 'a,b,,c'.split(',') | join('|') }}|{{ ' a  b '.split() | join('|') }}|{{ 'a,b,c'.split(',', 1)[1] }}",
    "{{ 'a,b,c'.rsplit(',', 1)[0] }}|{{ 'a b  c'.rsplit(none, 1) | join('|') }}|{{ 'k=v=w'.partition('=') | join('|') }}|{{ 'k=v=w'.rpartition('=') | join('|') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'x'.removesuffix('') }}",
    "{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'.upper() }} {{ 'AB'.lower() }} {{ 'ab cd'.title() }} {{ 'ab cd'.capitalize() }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.count('bc') }} {{ '12'.isdigit() }}",
    "{{ 'a\\nb\\n'.splitlines() | join('|') }} {{ '{} {x}'.format(1, x=2) }} {{ '-'.join(['a', 'b']) }} {{ '%s-%d'|format('a', 3) }}", "{{ '%s-%d' % ('a', 3) }}",
    "{{ 'héllo'[1] }}{{ 'héllo'[-2:] }}{{ 'héllo'[::-1] }}{{ 'héllo'[:2] }} {{ 'héllo'|length }}",
    "{{ [1,2,3][::-1] | join(',') }} {{ [1,2,3][-1] }} {{ [1,2,3][1:] | join(',') }} {{ [1,2] + [3] }} {{ [1,2,3]|last }} {{ [3,1,2]|sort|first }}",
    "{{ obj|tojson }}", "{{ obj|tojson(indent=2) }}", "{{ obj|tojson(ensure_ascii=true) }}", "{{ obj|tojson(separators=(',', ':')) }}",
    "{{ obj|tojson(sort_keys=true) }}", "{{ [1, 1.5, 'a', none, true, []]|tojson }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }}", "{{ nothing|tojson }}",
    "{% for k, v in obj.items() %}{{ k }}={{ v }};{% endfor %}", "{{ [1e-5] }}", "{{ 1e22 }} {{ 1e-5 }} {{ 1e-5|string }} {{ 2.0|string }} {{ true|string }} {{ none|string }} {{ 'a'|string }} {{ [1]|string }}", "{% for k in obj %}{{ k }};{% endfor %}{{ obj.keys()|join(',') }} {{ obj|length }}",
    "{% for k, v in obj|items %}{{ k }};{% endfor %}{% for k, v in obj|dictsort %}{{ k }};{% endfor %}",
    "{{ obj.get('zeta') }} {{ obj.get('no') }} {{ obj.get('no', 'd') }} {{ 'zeta' in obj }} {{ obj['text'] }} {{ obj.items()|list|length }} {{ nested['items'] }}",
    "{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set ns = namespace(n=0, seen=[]) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.seen = ns.seen + [i] %}{% endfor %}{{ ns.n }} {{ ns.seen|join }}",
    "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
    "{% for i in [1,2,3] if i != 2 %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }} {% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}",
    "{% macro m(a, b='x') %}[{{ a }}{{ b }}{{ caller() if caller else '' }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{% call m(3) %}body{% endcall %}",
    "{% set x %}captured {{ 1 }}{% endset %}{{ x|upper }}{% filter upper %}abc{% endfilter %}",
    "{{ 'a' if true }}{{ 'a' if false }}|{{ 'a' if false else 'b' }} {{ 1 if not nothing and (1 < 2) else 0 }} {{ 1 < 2 < 3 }}",
    "{{ 'x' is string }} {{ 1 is number }} {{ obj is mapping }} {{ [1] is iterable }} {{ 'a' is iterable }} {{ [1] is sequence }} {{ true is boolean }} {{ none is none }} {{ false is false }} {{ 1 is integer }} {{ 1.0 is float }}",
    "{{ ['b', 'a']|sort|join(',') }} {{ [1,2,3]|sum }} {{ msgs|map(attribute='role')|join(',') }} {{ msgs|selectattr('role', 'equalto', 'user')|list|length }} {{ msgs|rejectattr('role', 'in', ['user'])|list|length }}",
    "{{ ['a', 'b', 'a']|unique|list|length }} {{ '  a '|trim }} {{ 'abc'|first }} {{ 3.7|int }} {{ '12'|int + 1 }} {{ 2.345|round(1) }} {{ 'a b'|replace(' ', '_') }} {{ -3|abs }}",
    "  {% if true %}\n  x\n  {% endif %}\n  y {%- if true %} z{% endif -%}  \n  w\n\n",
    "{# comment #}\na{#- c -#}  b\n  {# c #}  \nc", "{%+ if true %} a{% endif %}\n  {%- set x = 1 -%}\n  b", "line\n", "line\n\n", "{{ 'a' }}\n\n  {{ 'b' }}\n",
    "{% raw %}{{ x }}{% endraw %}", "{{ \"it's\" }} {{ 'say \"hi\"' }} {{ 'tab\\tnew\\nline' }} {{ '\\u00e9' }}",
    "{{ '<&>' }} {{ '<&>'|escape }} {{ '<&>'|safe }}", "{{ 'a\nb\nc'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}",
    "{{ strftime_now('%d %B %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%A, %j %H:%M:%S') }}",
    "{% if x is defined and x %}{{ raise_exception('no') }}{% endif %}fine", "{{ raise_exception('Only \"user\" roles, 100% sure') }}",
    "{% generation %}g{% set y = 1 %}{% endgeneration %}{{ y }}", "{% with a = 1 %}{{ a }}{% endwith %}{{ a }}", "{{ 10000000000 * 10 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ 1_000 }}",
    "{{ dict(b=1)|tojson }} {{ {'b': 1, 'a': 2}['a'] }} {{ (1, 2)[1] }} {{ [[1, 2], [3]]|length }}", "{{ {'b': 1, 'a': 2}|tojson }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }} {{ ['x'] * 2 }} {{ 'ab' * 2 }} {{ 'b' in 'abc' }} {{ 4 not in [1] }}",
    "{{ 'x'.nosuchmethod() }}", "{{ nosuchfunction() }}", "{{ [1, 2.0, 'a', none, true] }} {{ nested }}",
]
VARIABLES = {
    "obj": {"zeta": 1, "alpha": [1, 2.5, -0.0], "small": 1e-5, "text": "é \"<'&/\\\t\u007f\u0001漢😀", "no_value": None, "yes": True},
    "nested": {"items": 5, "b": {"c": [1]}}, "msgs": PLAIN + [{"role": "system", "content": ""}],
}


def render(template, messages, add, extra):
    try:
        variables = {"tools": None, "documents": None, **TOKENS, **extra, "messages": messages, "add_generation_prompt": add}
        return environment().from_string(template).render(**variables), None
    except (jinja2.exceptions.UndefinedError, jinja2.exceptions.TemplateSyntaxError, TypeError):
        return None, None
    except jinja2.exceptions.TemplateError as error:
        return None, str(error)


cases = []
for name, template, requests in WHOLE:
    for number, (messages, add, extra) in enumerate(requests):
        text, raised = render(template, messages, add, extra)
        cases.append({"name": f"{name} {number}", "template": name, "messages": messages,
                      "add_generation_prompt": add, "extra": extra, "text": text, "raised": raised})
snippets = []
for template in SNIPPETS:
    text, raised = render(template, [], False, VARIABLES)
    snippets.append({"template": template, "text": text, "raised": raised})
print(json.dumps({
    "made_by": "make_chat_templates.py, jinja2 " + jinja2.__version__, "special_tokens": TOKENS,
    "templates": {name: template for name, template, _ in WHOLE}, "cases": cases,
    "variables": VARIABLES, "snippets": snippets}, indent=1, ensure_ascii=False))
