"""The chat protocol of Hy3: markers, tokenizer, template, and the parser of what it writes."""
