"""`/tokenize` and `/detokenize`: the tiny model's one token per byte."""

from replica.sim.body import json_object, optional_text, require
from replica.sim.desk import Desk
from replica.sim.endpoints.chat import messages_of
from replica.sim.errors import error, json_reply
from replica.sim.http import Reply, Request
from replica.sim.tokens import chat_prompt, from_ids, ids_of, text_prompt


async def tokenize(desk: Desk, request: Request) -> Reply:
    body = json_object(request)
    desk.names.resolve(optional_text(body, "model"))
    if "messages" in body:
        ids = ids_of(chat_prompt(messages_of(body)), chat=True)
    else:
        require(body, "prompt")
        ids = ids_of(text_prompt(str(body["prompt"])), chat=False)
    limit = desk.options.max_model_len
    return json_reply({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})


async def detokenize(desk: Desk, request: Request) -> Reply:
    body = json_object(request)
    desk.names.resolve(optional_text(body, "model"))
    require(body, "tokens")
    ids = body["tokens"]
    if not isinstance(ids, list) or not all(isinstance(entry, int) for entry in ids):
        raise error(400, "BadRequestError", "tokens must be a list of token ids")
    return json_reply({"prompt": from_ids(ids).decode("utf-8", "replace")})
