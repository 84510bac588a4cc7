"""What captions are worth, measured from captions.jsonl; no captioner is ever loaded here."""
