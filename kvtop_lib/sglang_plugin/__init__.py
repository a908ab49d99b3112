"""The part of KVTop that runs inside SGLang's processes; the rest of the package never imports it."""
