"""A small gateway that passes all checks, and does wrong what ``faults`` names. Its engine obeys the directive."""

import json
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from uuid import uuid4

from benchmarks.gateway_traps.say import Told, told, written

START, END, CONTEXT = 1, 2, 3000
CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
THINK = re.compile(r"^<think>\n(.*?)\n</think>\s*", re.DOTALL)
KEYS = {"model", "messages", "input", "system", "instructions", "max_tokens", "max_output_tokens", "stop", "tools", "n"}
KEYS |= {"stop_sequences", "stream", "stream_options", "return_token_ids", "logprobs", "store"}
PATHS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "anthropic"}


def encode(text: str, *, control: bool = False) -> list[int]:
    """Bytes, and pairs of letters."""
    tokens: list[int] = []
    for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text) if control else [text]:
        data, at = part.encode(), 0
        if control and part in {"<|im_start|>", "<|im_end|>"}:
            tokens.append(START if "start" in part else END)
            continue
        while at < len(data):
            pair = data[at : at + 2]
            tokens.append(1000 + pair[0] * 256 + pair[1] if len(pair) == 2 and pair.isalpha() else 10 + pair[0])
            at += 2 if tokens[-1] >= 1000 else 1
    return tokens


def decode(tokens) -> str:
    data = b""
    for token in tokens:
        if token < 10:
            data += b"<|im_start|>" if token == START else b"<|im_end|>"
        else:
            data += bytes(divmod(token - 1000, 256)) if token >= 1000 else bytes([token - 10])
    return data.decode(errors="replace")


class Said(NamedTuple):
    role: str
    content: str = ""
    calls: tuple = ()
    reasoning: str = ""


class Refused(Exception):  # noqa: N818 - no error of this side
    """Status and message."""


class Turn(NamedTuple):
    """Token number i is there at ``began + (i + 1) * pace``."""

    name: str
    prompt: list
    tokens: list
    said: Said
    finish: str
    began: float
    pace: float


class Rollout:
    def __init__(self):
        self.known, self.asked, self.over, self.lock = {}, {}, False, threading.Lock()


class Naive(ThreadingHTTPServer):
    """``key`` is that of a rollout; `new_key` and `end` begin and end others."""

    daemon_threads = block_on_close = True
    request_queue_size = 64

    def __init__(self, *faults: str):
        self.faults, self.rollouts, self.key = set(faults), {}, ""
        self.key = self.new_key()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def new_key(self) -> str:
        key = secrets.token_hex(12)
        self.rollouts[key] = Rollout()
        return key

    def end(self, key: str) -> None:
        self.rollouts[key].over = True

    def handle_error(self, request, client_address):
        pass  # a client has left

    # Prompts.

    def same(self, said: Said) -> Any:
        """By which a message is recognised."""
        if said.role != "assistant":
            return said[:2]
        calls = tuple((name, self.arguments(text)) for name, text in said.calls)
        content = said.content if "exact_text" in self.faults else said.content.strip()
        return ("assistant", content, calls, said.reasoning if "exact_reasoning" in self.faults else "")

    def arguments(self, text: str) -> str:
        if "exact_json" in self.faults or "repairs" in self.faults:
            return text if "exact_json" in self.faults else ""
        numbers = {} if "exact_numbers" in self.faults else {"parse_float": lambda text: int(float(text))}
        return json.dumps(json.loads(text, **numbers), sort_keys=True)

    def render(self, said, tools: str) -> list[int]:
        tokens = encode(tools) if tools else []
        for each in said:
            calls = [
                f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>' for name, text in each.calls
            ]
            thought = f"<think>\n{each.reasoning}\n</think>\n\n" if each.reasoning else ""
            text = thought + "\n".join(filter(None, (each.content, *calls)))
            tokens += [START, *encode(each.role + "\n")]
            tokens += [*encode(text, control="control" in self.faults), END, *encode("\n")]
        return tokens

    def prompt(self, rollout: Rollout, said: list[Said], tools: str) -> tuple[list[int], Any]:
        """The tokens, and the key by which the turn is known."""
        if "system_first" in self.faults:
            said = sorted(said, key=lambda each: each.role != "system")
        if "no_old_reasoning" in self.faults and any(each.reasoning for each in said):
            return [*self.render([each._replace(reasoning="") for each in said], tools), START], ()
        head = tools if "exact_tools" in self.faults else "".join(sorted(tools))
        same = (head, *map(self.same, said))
        begin = [START, *encode("assistant\n")]
        if "other_frame" in self.faults:
            return encode(secrets.token_hex(8)) + self.render(said, tools) + begin, same
        for count in range(len(said), 0, -1):
            tokens = rollout.known.get(same[: count + 1])
            if tokens is not None and "renders_again" not in self.faults:
                return tokens + encode("\n") + self.render(said[count:], "") + begin, same
        return self.render(said, tools) + begin, same

    # Turns.

    def turns(self, rollout: Rollout, said, body, content: bytes, *, again: bool) -> list[Turn]:
        tools = json.dumps(body.get("tools") or [])
        if "strict" not in self.faults:
            inner = [each.get("function", each) for each in body.get("tools") or []]
            tools = json.dumps([[each["name"], each.get("parameters") or each.get("input_schema")] for each in inner])
        with rollout.lock:
            known = rollout.asked.get(content)
            if known and ("same_body" in self.faults or (again and "no_retries" not in self.faults)):
                return known
            prompt, same = self.prompt(rollout, said, tools)
            most = body.get("max_tokens") or body.get("max_output_tokens") or 1000
            if len(prompt) + most > CONTEXT:
                failing = "overflow_500" in self.faults
                raise Refused(500 if failing else 400, "prompt is too long: over the maximum context length")
            made = [self.turn(prompt, most, body) for _ in range(body.get("n") or 1)]
            rollout.asked[content] = made
            for each in made[-1:] if "last_choice" in self.faults else made:
                if each.finish != "length" and not (body.get("stop") or body.get("stop_sequences")):
                    rollout.known[*same, self.same(each.said)] = each.prompt + each.tokens
            return made

    def turn(self, prompt, most, body) -> Turn:
        what = told(decode(prompt)) or Told("plain", 0, "ok")
        if "deaf" in self.faults:
            what = Told("plain", 0, "Hello!")
        tokens = written(what, encode, decode, END, most)
        text = decode([each for each in tokens if each != END])
        finish = "stop" if tokens[-1] == END else "length"
        for stop in [] if "ignores_stop" in self.faults else body.get("stop") or body.get("stop_sequences") or []:
            if stop in text:
                count = next(count for count in range(len(tokens)) if stop in decode(tokens[:count]))
                text, tokens = text.partition(stop)[0], tokens[:count] + ([END] if "closes" in self.faults else [])
        if finish == "length" and "closes" in self.faults:
            tokens[-1] = END
        thought = THINK.match(text)
        reasoning, text = (thought[1], text[thought.end() :]) if thought else ("", text)
        found = [json.loads(each) for each in CALL.findall(text)]
        calls = tuple((each["name"], json.dumps(each["arguments"])) for each in found)
        text = CALL.sub("", text).rstrip() if calls else text
        said = Said("assistant", text, calls, reasoning)
        pace = what.pace / 1000
        return Turn(uuid4().hex, prompt, tokens, said, "tool_calls" if calls else finish, time.monotonic(), pace)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Naive
    dialect = "chat"

    def log_message(self, *_):
        pass

    def do_GET(self):
        card = {"id": "naive", "max_model_len": CONTEXT}
        self.send(200, {"data": [] if "unlisted" in self.server.faults else [card]})

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.removesuffix("/count_tokens")
        self.dialect, faults = PATHS.get(path, "chat"), self.server.faults
        key = self.headers.get("x-api-key") or (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        rollout = self.server.rollouts.get(self.server.key if "any_key" in faults else key)
        if path not in PATHS or ("chat_only" in faults and self.dialect != "chat"):
            self.refuse(404, f"no such path{key if 'repeats_key' in faults else ''}")
        elif rollout is None:
            self.refuse(401, "wrong key")
        elif rollout.over and "late" not in faults:
            self.refuse(409, "rollout concluded")
        else:
            try:
                self.answer(rollout, content)
            except Refused as refused:
                self.refuse(*refused.args)

    def answer(self, rollout: Rollout, content: bytes) -> None:
        faults = self.server.faults
        try:
            body = json.loads(content)
            if unknown := set() if "unknown" in faults else set(body) - KEYS:
                raise Refused(400, f"unknown: {unknown}")
            said = self.said(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(500 if "malformed" in faults else 400, f"no request: {error!r}") from None
        if not said:
            raise Refused(400, "no messages")
        if "no_responses" in faults and "input" in body:
            raise Refused(500, "not built yet")
        if "one_model" in faults and body.get("model") != "naive":
            raise Refused(404, "no such model")
        if "empty" in faults and any(each == Said("assistant") for each in said):
            raise Refused(500, "empty")
        if self.path.endswith("/count_tokens"):
            if "no_count" in faults:
                raise Refused(404, "no such path")
            self.send(200, {"input_tokens": len(self.server.prompt(rollout, said, "[]")[0])})
            return
        again = self.headers.get("x-stainless-retry-count", "0") != "0"
        turns = self.server.turns(rollout, said, body, content, again=again)
        if body.get("stream"):
            try:
                self.stream(turns[0], body)
            except OSError:
                rollout.over = rollout.over or "breaks" in faults
                self.close_connection = True
            return
        time.sleep(max(0, turns[0].began + len(turns[0].tokens) * turns[0].pace - time.monotonic()))
        self.send(200, self.reply(turns, body))

    def said(self, body) -> list[Said]:
        """The messages of a body."""
        found = []
        system = body.get("system") or body.get("instructions") or ""
        if isinstance(system, list):
            kept = [each["text"] for each in system]
            billed = "billing" in self.server.faults
            system = "".join(each for each in kept if billed or not each.startswith("x-anthropic-billing"))
        found += [Said("system", system)] if system else []
        for each in body["input"] if self.dialect == "responses" else body["messages"]:
            found += self.message(each)
            if len(found) > 1 and found[-2].role == found[-1].role == "assistant":
                parts = zip(found.pop()[1:], found.pop()[1:], strict=True)
                found.append(Said("assistant", *(before + more for more, before in parts)))
        return found

    def message(self, each) -> list[Said]:
        kind, role, content = each.get("type"), each.get("role"), each.get("content") or []
        if kind == "function_call":
            return [Said("assistant", calls=((each["name"], each["arguments"]),))]
        if kind == "function_call_output":
            return [Said("tool", each["output"])]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        known = {"text", "thinking", "tool_use", "tool_result", "input_text", "output_text", "reasoning_text"}
        if "images" not in self.server.faults and (odd := {part["type"] for part in parts} - known):
            raise Refused(400, f"not supported: {odd}")
        results = [Said("tool", part["content"]) for part in parts if part["type"] == "tool_result"]
        text = "".join(part.get("text", "") for part in parts if part["type"] != "reasoning_text")
        if kind == "reasoning":
            return [Said("assistant", reasoning=parts[0]["text"])]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in each.get("tool_calls") or ()]
        calls += [(part["name"], json.dumps(part["input"])) for part in parts if part["type"] == "tool_use"]
        thought = each.get("reasoning_content") or "".join(part.get("thinking", "") for part in parts)
        return results or [Said(role, text, tuple(calls), thought)]

    # Replies.

    def refuse(self, status: int, message: str) -> None:
        error = {"type": "invalid_request_error", "message": message}
        self.send(status, {"type": "error", "error": error} if self.dialect == "anthropic" else {"error": error})

    def send(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def ids(self, turn: Turn, tokens=None) -> dict[str, Any]:
        """Token ids of a turn, or some of them."""
        tokens = turn.tokens if tokens is None else tokens
        logprobs = [{"logprob": 0.0 if "zero_logprobs" in self.server.faults else -0.25} for _ in tokens]
        logprobs = logprobs[1:] if "short_logprobs" in self.server.faults else logprobs
        return {} if "no_ids" in self.server.faults else {"token_ids": tokens, "logprobs": {"content": logprobs}}

    def usage(self, turns, prompt: str, tokens: str) -> dict[str, int]:
        wrong = "usage" in self.server.faults
        return {prompt: len(turns[0].prompt), tokens: sum(len(each.tokens) for each in turns) - wrong}

    def items(self, turn: Turn) -> list[dict[str, Any]]:
        """The turn in the parts of its dialect."""
        said, thought, text, calls = turn.said, [], [], []
        ids = [f"call_{turn.name}_{number}" for number in range(len(said.calls))]
        both = list(zip(ids, said.calls, strict=True))
        if self.dialect == "anthropic":
            thought = [{"type": "thinking", "thinking": said.reasoning, "signature": ""}]
            text = [{"type": "text", "text": said.content}]
            calls = [
                {"type": "tool_use", "id": own, "name": name, "input": json.loads(args)} for own, (name, args) in both
            ]
        elif self.dialect == "responses":
            thought = [
                {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": said.reasoning}]}
            ]
            parts = [{"type": "output_text", "text": said.content}]
            text = [{"type": "message", "id": "m", "role": "assistant", "content": parts}]
            calls = [
                {"type": "function_call", "id": f"fc{own}", "call_id": own, "name": name, "arguments": args}
                for own, (name, args) in both
            ]
        else:
            return [
                {"index": number, "id": own, "type": "function", "function": {"name": name, "arguments": args}}
                for number, (own, (name, args)) in enumerate(both)
            ]
        return [*(thought if said.reasoning else []), *(text if said.content else []), *calls]

    def reply(self, turns, body) -> dict[str, Any]:
        turn = turns[0]
        prompt = {} if "no_ids" in self.server.faults else {"prompt_token_ids": turn.prompt}
        if self.dialect == "anthropic":
            reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[turn.finish]
            usage = self.usage(turns, "input_tokens", "output_tokens")
            head = {"id": turn.name, "content": self.items(turn), "stop_reason": reason, "usage": usage}
            return {**head, **prompt, **self.ids(turn)}
        if self.dialect == "responses":
            cut = turn.finish == "length"
            head = {"id": turn.name, "output": self.items(turn), "status": "incomplete" if cut else "completed"}
            usage = self.usage(turns, "input_tokens", "output_tokens")
            return {
                **head,
                "incomplete_details": {"reason": "max_output_tokens"},
                "usage": usage,
                **prompt,
                **self.ids(turn),
            }
        choices = []
        for number, each in enumerate(turns):
            message = {"role": "assistant", "content": each.said.content}
            message |= {"reasoning_content": each.said.reasoning} if each.said.reasoning else {}
            message |= {"tool_calls": self.items(each)} if each.said.calls else {}
            choices.append({"index": number, "message": message, "finish_reason": each.finish, **self.ids(each)})
        usage = self.usage(turns, "prompt_tokens", "completion_tokens")
        return {"id": turn.name, "choices": choices, "usage": usage, **prompt}

    def stream(self, turn: Turn, body) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        sequence = 0
        for part in self.parts(turn, body):
            if part is not None and self.dialect == "responses":
                part["sequence_number"] = sequence
                sequence += 1
            self.wfile.write(b": waiting\n\n" if part is None else f"data: {json.dumps(part)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n" if self.dialect == "chat" else b"")

    def pieces(self, turn: Turn) -> Iterator[tuple[str, list[int]] | None]:
        """The content of a turn as it is written, and its tokens; None: nothing yet."""
        faults = self.server.faults
        content, shown = turn.said.content, ""
        content = content.rstrip() if "stream_strips" in faults else content
        held = turn.said.reasoning or turn.said.calls or "buffers" in faults
        for number, token in enumerate(turn.tokens):
            while (left := turn.began + (number + 1) * turn.pace - time.monotonic()) > 0:
                time.sleep(min(left, 0.05))
                if left > 0.05 and not faults & {"silent", "buffers"}:
                    yield None
            if "halves" in faults:
                text = decode([token]) if token != END else ""
            else:
                text = decode(turn.tokens[: number + 1]).rstrip("\ufffd")
                text = "" if held or not content.startswith(text) else text[len(shown) :]
            shown += text
            yield text, [token]
        yield content[len(shown) :] if "halves" not in faults else "", []

    def parts(self, turn: Turn, body) -> Iterator[dict[str, Any] | None]:
        """The events of a stream."""
        make = {"chat": self.chunks, "responses": self.events, "anthropic": self.blocks}[self.dialect]
        yield from make(turn, self.reply([turn], body))

    def chunks(self, turn: Turn, whole) -> Iterator[dict[str, Any] | None]:
        def chunk(delta, **more) -> dict[str, Any]:
            return {"id": turn.name, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}

        message = whole["choices"][0]["message"]
        kept = len(turn.tokens) - 10 * ("stream_drops_ids" in self.server.faults)
        for number, piece in enumerate(self.pieces(turn)):
            if piece is None:
                yield None
                continue
            yield chunk({"content": piece[0]}, **(self.ids(turn, piece[1]) if number < kept else {}))
        rest = {key: message[key] for key in ("reasoning_content", "tool_calls") if key in message}
        yield {**whole, **chunk(rest, finish_reason=turn.finish)}

    def events(self, turn: Turn, whole) -> Iterator[dict[str, Any] | None]:
        kept = {key: value for key, value in whole.items() if key != "token_ids"}
        yield {"type": "response.created", "response": {}}
        told = ""
        for piece in self.pieces(turn):
            told += piece[0] if piece else ""
            if piece is None or piece[0]:
                yield piece and {"type": "response.output_text.delta", "delta": piece[0]}
        for item in whole["output"]:
            if item["type"] == "message":
                item["content"] = [{"type": "output_text", "text": told}]
            yield {"type": "response.output_item.done", "item": item}
        whole = kept if "stream_drops_ids" in self.server.faults else whole
        yield {"type": f"response.{whole['status']}", "response": whole}

    def blocks(self, turn: Turn, whole) -> Iterator[dict[str, Any] | None]:
        yield {"type": "message_start", "message": {"id": turn.name, "content": [], "usage": {}}}
        thought = bool(turn.said.reasoning)
        if thought:
            yield {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
            delta = {"type": "thinking_delta", "thinking": turn.said.reasoning}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
            yield {"type": "content_block_stop", "index": 0}
        begun = False
        for piece in self.pieces(turn):
            if piece is None:
                yield {"type": "ping"}
            elif piece[0]:
                if not begun:
                    block = {"type": "text", "text": ""}
                    yield {"type": "content_block_start", "index": thought, "content_block": block}
                begun = True
                delta = {"type": "text_delta", "text": piece[0]}
                yield {"type": "content_block_delta", "index": thought, "delta": delta}
        if begun:
            yield {"type": "content_block_stop", "index": thought}
        for number, block in enumerate(self.items(turn)):
            if block["type"] == "tool_use":
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
                yield {"type": "content_block_start", "index": number, "content_block": {**block, "input": {}}}
                yield {"type": "content_block_delta", "index": number, "delta": delta}
                yield {"type": "content_block_stop", "index": number}
        ids = {key: whole[key] for key in ("prompt_token_ids", "token_ids", "logprobs") if key in whole}
        ids.pop("token_ids" if "stream_drops_ids" in self.server.faults else "", None)
        delta = {"stop_reason": whole["stop_reason"]}
        yield {"type": "message_delta", "delta": delta, "usage": whole["usage"], **ids}
        yield {"type": "message_stop"}


@contextmanager
def gateway(*faults: str) -> Iterator[Naive]:
    """The gateway within this block."""
    with Naive(*faults) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
