"""What the words of a text are, and what languages are called.

words       splits texts into words: by spaCy's rules, at whitespace, at Unicode's word boundaries
spacy       spaCy's rule tokenizers as datatrove uses them, without importing spaCy
languages   codes of languages: which ones mean the same language

Kernels below decide about bytes: `kernels/utf8.py` says what a character, whitespace and a line
end is, `kernels/lines.py` what a line and a paragraph is, `kernels/spans.py` what a span is,
`kernels/folding.py` which texts are alike, and `kernels/words/` splits and remembers words.
"""
