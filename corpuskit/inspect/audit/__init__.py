"""What is in any text data, measured without a pipeline: `corpuskit audit`.

reading.py    finds the files, guesses the text column, chooses what is read and what is analysed
holding.py    what is held of documents until all are read, in bounded memory
estimates.py  rates with intervals
checks.py     measures each batch, and puts the findings together
page.py       the findings as one HTML file
"""
