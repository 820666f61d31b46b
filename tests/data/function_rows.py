"""Rows of each function-calling data set, in its publisher's columns and its ways of writing."""

import json

XLAM = {
    "id": 7,
    "query": "What is the weather in Rome for 3 days, and convert 10 EUR to USD?",
    "answers": json.dumps(
        [
            {"name": "weather", "arguments": {"city": "Rome", "days": 3}},
            {"name": "convert", "arguments": {"amount": 10, "pair": ["EUR", "USD"]}},
        ]
    ),
    "tools": json.dumps(
        [
            {
                "name": "weather",
                "description": "The forecast of a city.",
                "parameters": {
                    "city": {"description": "Its name.", "type": "str"},
                    "days": {"description": "How far.", "type": "int, optional", "default": 1},
                },
            },
            {
                "name": "convert",
                "description": "Converts money.",
                "parameters": {
                    "amount": {"description": "How much.", "type": "float"},
                    "pair": {"description": "From and to.", "type": "List[str]"},
                },
            },
        ]
    ),
}

_TRENDS = {
    "name": "Market Trends API",
    "description": "Trends of a market.",
    "parameters": {
        "type": "dict",
        "properties": {
            "trend_type": {"description": "Which.", "type": "string", "enum": ["HOT", "COLD"]},
            "country": {"description": "Where.", "type": "string"},
        },
        "required": ["trend_type"],
    },
    "required": None,
}
_TALLY = {
    "name": "tally",
    "description": "Adds up.",
    "parameters": {
        "type": "dict",
        "properties": {"items": {"type": "list", "items": {"type": "int"}}, "exact": {"type": "bool"}},
        "required": ["items"],
    },
}
TOOLACE = {
    "system": "You are an expert in composing functions. Here is a list of functions in JSON format that you can "
    f"invoke:\n{json.dumps([_TRENDS, _TALLY])}. \nShould you decide to return the function call(s). Put it in the "
    "format of [func1(params_name=params_value, params_name2=params_value2...), func2(params)]\n"
    "NO other text MUST be included. ",
    "conversations": [
        {"from": "user", "value": "What is hot in the US (and why)?"},
        {"from": "assistant", "value": '[Market Trends API(trend_type="HOT", country="the \\"US\\", (all)")]'},
        {"from": "tool", "value": '[{"name": "Market Trends API", "results": {"top": "tin"}}]'},
        {"from": "assistant", "value": "Tin is hot."},
        {"from": "user", "value": "Add up 1, 2 and 3, twice."},
        {"from": "assistant", "value": "[tally(items=[1, 2, 3], exact=true), tally(items=[1, 2, 3])]"},
    ],
}

BFCL = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "The area of a triangle, base 10, height 5?"}]],
    "function": [
        {
            "name": "geometry.area",
            "description": "Of a triangle.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "base": {"type": "integer", "description": "Base."},
                    "height": {"type": "float", "description": "Height."},
                    "unit": {"type": "string", "description": "Of both."},
                    "at": {"type": "dict", "properties": {"lat": {"type": "float"}, "long": {"type": "float"}}},
                },
                "required": ["base", "height"],
            },
        }
    ],
}
BFCL_ANSWER = {
    "id": "simple_0",
    "ground_truth": [
        {"geometry.area": {"base": [10], "height": [5], "unit": ["", "units"], "at": [{"lat": [1.5], "long": [2]}]}}
    ],
}

_ROUTE = {
    "name": "route",
    "description": "Finds a way.",
    "parameters": {
        "type": "dict",
        "properties": {"to": {"type": "string", "description": "Where to."}},
        "required": ["to"],
    },
}
WHEN2CALL = [  # chats whose functions are JSON texts, and whose calls stand in the assistant's text
    {
        "tools": [json.dumps(_ROUTE)],
        "messages": [
            {"role": "user", "content": "How do I get to Rome?"},
            {"role": "assistant", "content": '<TOOLCALL>[{"name": "route", "arguments": {"to": "Rome"}}]</TOOLCALL>'},
        ],
    },
    {
        "tools": [json.dumps(_ROUTE)],
        "messages": [
            {"role": "user", "content": "How do I get there?"},
            {"role": "assistant", "content": "Where do you want to go?"},
        ],
    },
    {
        "tools": [json.dumps(_ROUTE)],
        "messages": [
            {"role": "user", "content": "What is the weather in Oslo?"},
            {"role": "assistant", "content": "I have no function for the weather."},
        ],
    },
    {
        "tools": [],
        "messages": [
            {"role": "user", "content": "Book a table."},
            {"role": "assistant", "content": "I cannot book tables."},
        ],
    },
]
