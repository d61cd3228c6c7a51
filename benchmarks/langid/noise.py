"""Generate what surrounds language in real documents: code, markup, numbers, paths.

The same kinds of noise are laid over every language, so that the model learns to look past them;
the words in it are English because identifiers are. Written for this purpose, nothing is taken from
a corpus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

KEYWORDS = tuple(
    """int void const char return if else elif for while true false null nil none def class static
    include import from struct union typedef enum public private async await let var val fn func
    function lambda try catch except throw raise yield with as in is not and or new delete
    sizeof unsigned long double float bool string list dict map set self this super print printf
    println echo main argv argc std stdout stdin stderr end begin do done then fi esac case
    switch break continue default goto extern template typename namespace using select insert
    update where join group order limit src div span href html css js json xml yaml http https
    www com org net usr etc lib bin tmp sudo apt git cmake gcc npm pip config args kwargs ptr
    buf len idx ret err ctx req res api url uri uuid utf ascii md5 sha256 x86 amd64 linux
    windows unix posix ruby python perl java rust docker""".split()
)
WORDS = tuple(
    """access account action active add address after alias align all allocate allow alpha amount
    any append apply area argument array assign attach attribute audio author auto available
    back bar base batch before beta bind bit bitmap block body border bottom bounds box branch
    buffer build button byte cache call cancel caption change channel character check child
    clean clear click client clip clock close cluster code collection color column command
    comment commit common compare compile complete component compute condition connect console
    constant container content context control convert copy core count counter create current
    cursor custom data database date debug decode default define delay delete depth describe
    destroy detail device dialog digest direct directory disable disk display document domain
    down draw driver drop dump duplicate edge edit element empty enable encode end engine enter
    entry environment error event example exception execute exit expand expression extend
    extension external extra failed feature field file fill filter find first fixed flag flush
    focus folder font force format found frame free full function generate get global graph grid
    group handle handler hash head header height help hidden high hint host hour icon identifier
    image index info initial inline input insert instance integer interface internal item
    iterator key kernel keyboard label language large last layer layout left length level
    library license limit line link list listen load local location lock log loop low mail make
    manager map margin mask master match matrix max maximum member memory menu merge message
    metadata method min minimum minute mode model module month mount mouse move multiple mutex
    name native network next node note notify number object offset open operation operator
    option order origin output overflow owner package packet page pair panel parameter parent
    parse part partition password patch path pattern pause pending permission pixel plain
    platform player plugin point pointer policy pool port position post power prefix previous
    primary print priority private process product profile program progress project property
    protocol provider proxy public pull push query queue quick random range rate raw read ready
    real record recursive reference refresh region register relative release reload remote
    remove rename render repeat replace report request require reserved reset resize resolve
    resource response restart restore result resume return reverse right role root rotate round
    route row rule run runtime safe sample save scale schedule schema scope screen script scroll
    search second section sector secure security select send separator sequence serial server
    service session setting setup shadow shape share shell short show shutdown side signal
    signature simple single size skip sleep slice slot small snapshot socket sort source space
    special split stack standard start state statement static status stop storage store stream
    strict string structure style sub submit success suffix support swap switch symbol sync
    syntax system tab table tag target task template temporary terminal test text texture thread
    time timeout timer title token tool top total trace track transaction transfer transform
    trigger trim type unique unit unknown unlock update upgrade upload usage user valid value
    variable vector verify version vertical video view virtual visible volume wait warning watch
    weight width window wizard word work worker wrap write year zero zone""".split()
)
SYLLABLES = tuple(
    "ba co de fi gu he in jo ka lo ma ne or pi qu ra st ta un ve wi xy zo re al en".split()
)
OPERATORS = tuple(
    """= == != <= >= + - * / % && || -> => :: | ; { } ( ) [ ] (); [] # // /* */ ``` --- *** <br>
    </div> <p> <td> \\n \\fB \\fR .SH .TP .PP ... : , "" '' $ @ & ~ ^ ? > < >>> $1 %s %d {} {{
    }} |---| ## ###""".split()
)
# Runs of these rule tables and headings, or indent; no-break spaces are no space to fastText.
TYPOGRAPHY = (
    *("-", "=", "_", "*", "~", ".", "|", "#", "+-", "|-", ":-", "| "),
    *(
        "\xa0",
        "\xa9",
        "\xb7",
        "\xbb",
        "\xab",
        "\u2013",
        "\u2014",
        "\u2019",
        "\u201c",
        "\u201d",
        "\u2022",
    ),
    *(
        "\u2026",
        "\u2192",
        "\u2500",
        "\u2502",
        "\u251c\u2500",
        "\u2713",
        "\xb6",
        "\ufe0f",
        "\U0001f4dd",
    ),
)
# English as manuals write it; {} is one of WORDS. The two sets hold none of it.
PHRASES = (
    "Specifies the {} of the {}.",
    "Returns the {} that is associated with this {}.",
    "This {} describes how to {} a {} and its {}.",
    "The following table lists the {} {}s that are supported by the {}.",
    "Sets or gets a value that indicates whether the {} has been {}ed.",
    "If this {} is not specified, the default {} is used.",
    "A handle to the {} whose {} is to be retrieved.",
    "An application sends this message to {} the {}.",
    "Use the {} command to {} one or more {}s.",
    "See also: {}, {}, {}.",
    "For more information about {}s, see the {} reference.",
    "The {} contains information about the {} and {} of each {}.",
    "Note that you can't {} a {} while another {} is being {}ed.",
    "In this example, we create a new {} and then {} its {}.",
    "There are several ways to {} the {}; which one you need depends on your {}.",
    "This is only available when the {} was built with {} support.",
    "Initializes a new instance of the {} class.",
    "It should not be called directly by user {}s.",
    "Minimum supported {}: version {} or later.",
    "On success, zero is returned; on error, the {} is set appropriately.",
    "Copyright notice and permission to {} this {} are given below.",
    "When you run this, it will {} all of the {}s in your {}.",
    "Determines which {} should be used for {}ing.",
    "These functions are defined in the {} header and require the {} library.",
    "Describes the {}, its {}s, requirements, remarks and return value.",
    "You may want to {} the {} before you {} anything else.",
    "Identifies the {} for which a {} has not yet been allocated.",
    "Parameters, properties, methods, members, remarks, requirements, examples, description.",
    "Has the {} changed since it was last {}ed? If so, {} it again.",
    "Writes a {} to the specified {} and waits until the {} has finished.",
)
ENDINGS = ("c", "h", "py", "txt", "md", "rb", "js", "dll", "so", "conf", "html")
MARKS = (
    ("`", "`"),
    ("**", "**"),
    ("<b>", "</b>"),
    ("[", "](#)"),
    ("(", ")"),
    ('"', '"'),
    ("- ", ""),
    ("\\fI", "\\fR"),
)


def decorate(text: str, rng: random.Random, share: float) -> str:
    """Return `text` with noise between its words: about `share` runs of noise per word."""
    out: list[str] = []
    for word in _pieces(text, rng):
        while rng.random() < share / (1 + share):
            out.extend(_token(rng) for _ in range(rng.randint(1, 4)))
        if rng.random() < 0.1 * share:
            left, right = rng.choice(MARKS)
            word = left + word + right
        out.append(word)
    if rng.random() < share:
        out.extend(_token(rng) for _ in range(rng.randint(1, 12)))
    return " ".join(out)


def _pieces(text: str, rng: random.Random) -> list[str]:
    """Split at spaces, and what has none (Chinese, Thai) into runs of 3 to 12 characters."""
    pieces: list[str] = []
    for word in text.split():
        while len(word) > 15 and not word[0].isascii():
            size = rng.randint(3, 12)
            pieces.append(word[:size])
            word = word[size:]
        pieces.append(word)
    return pieces


def phrases(rng: random.Random) -> str:
    """Return one to six sentences of made-up manual English."""
    chosen = [rng.choice(PHRASES) for _ in range(rng.randint(1, 6))]
    return " ".join(
        "".join(part + rng.choice(WORDS) for part in phrase.split("{}")[:-1])
        + phrase.split("{}")[-1]
        for phrase in chosen
    )


def repeated(rng: random.Random) -> str:
    """Return a few tokens over and over, as in tables and listings; no language but noise."""
    tokens = [_token(rng) for _ in range(rng.randint(1, 8))]
    return " ".join(rng.choice(tokens) for _ in range(rng.randint(4, 60)))


def recase(text: str, rng: random.Random) -> str:
    """Change the case of a whole line, or not."""
    draw = rng.random()
    if draw < 0.05:
        return text.upper()
    if draw < 0.12:
        return text.lower()
    return text.title() if draw < 0.15 else text


def _word(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(WORDS)
    if draw < 0.85:
        return rng.choice(KEYWORDS)
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))


def _name(rng: random.Random) -> str:
    """Return an identifier of one to four words in one of the usual spellings."""
    words = [_word(rng) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
    spelling = rng.randrange(6)
    if spelling == 0:
        return "_".join(words).upper()
    if spelling == 1:
        return "".join(word.title() for word in words)
    if spelling == 2:
        return words[0] + "".join(word.title() for word in words[1:])
    return ("_", "-", ".", "")[rng.randrange(4)].join(words) if spelling < 5 else words[0]


def _token(rng: random.Random) -> str:
    kind = rng.randrange(14)
    if kind < 2:
        return rng.choice(OPERATORS)
    if kind == 2:
        return rng.choice(TYPOGRAPHY) * rng.choice((1, 1, 2, 3, 8, 30))
    if kind < 6:
        return _word(rng)
    if kind < 9:
        return _name(rng)
    if kind == 9:
        return _name(rng) + rng.choice(("()", ";", "(", ")", ",", ":", "[0]", "=1", "();", " ="))
    if kind == 10:
        return str(rng.randrange(10 ** rng.randint(1, 5)))
    if kind == 11:
        folders = [_word(rng) for _ in range(rng.randint(1, 3))]
        return "/".join(["", *folders, _name(rng) + "." + rng.choice(ENDINGS)])
    if kind == 12:
        return rng.choice(("--", "-", "-", "@", "$", "#", "<", "&")) + _word(rng)
    return "0x" + "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice((2, 4, 8))))
