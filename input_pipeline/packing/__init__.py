"""From a token store to rows: windows, packed documents, documents."""
