"""Reading an engine's reply so that one line can't get out of step, whatever the model's text holds."""

from __future__ import annotations

import codecs
import re

from orchestrator.protocol import EOT_BYTE, ERROR_CODES, BadRequest, EngineUsage, parse_usage

_CONTROL = re.compile(rb"[\x04\x15]")
_ERROR = re.compile(rb"(" + "|".join(ERROR_CODES).encode() + rb")(?: ([^\x04\x15]*))?\x04")
_LONGEST = 4096  # bytes of an error line or a usage document
_USAGE = b"<usage"
REPLACEMENT = "\ufffd"


class ReplyReader:
    """Bytes of one reply in, text for the instance out; cut anywhere, the result is the same.

    An EOT ends the reply only if `<usage` follows, a NAK starts an error only if a known code follows: both become
    U+FFFD otherwise. Broken UTF-8 becomes U+FFFD as well. `done` once the usage was read; `ended` once the EOT was, so
    that an engine that sends no usage can be told by a timeout.
    """

    def __init__(self) -> None:
        self.done = False
        self.error: tuple[str, str] | None = None  # code, message
        self.usage: EngineUsage | None = None
        self._held = bytearray()
        self._mode = "text"
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def ended(self) -> bool:
        """The reply's EOT is here, and nothing yet that says it was not the end."""
        return self.done or self._mode == "eot"

    @property
    def left_over(self) -> bool:
        """More came than this reply: what follows on this connection can't be trusted."""
        return self.done and bool(self._held)

    def feed(self, data: bytes) -> str:
        """Take what the engine sent; the text that can be passed on now."""
        self._held += data
        out: list[str] = []
        step = {"text": self._text, "eot": self._after_eot, "nak": self._after_nak}
        while not self.done and step[self._mode](out):
            pass
        return "".join(out)

    def _text(self, out: list[str]) -> bool:
        match = _CONTROL.search(self._held)
        end = match.start() if match else len(self._held)
        if match:
            self._mode = "eot" if match[0] == EOT_BYTE else "nak"
        out.append(self._decoder.decode(bytes(self._held[:end]), final=match is not None))
        del self._held[:end]
        return match is not None

    def _after_eot(self, out: list[str]) -> bool:
        rest = bytes(self._held[1 : _LONGEST + 2])
        if rest[:6] == _USAGE and rest[6:7] in (b" ", b"/"):
            end = rest.find(EOT_BYTE)
            if end >= 0:
                try:
                    self.usage = parse_usage(rest[:end])
                except BadRequest:
                    pass  # a usage that can't be read is an unknown one
                self.done = True
                del self._held[: end + 2]
                return False
            if len(rest) <= _LONGEST:
                return False
        elif len(rest) < 7 and _USAGE.startswith(rest[:6]):
            return False
        if self.error:
            self.done = True  # an error without usage; what follows is not trusted
            return False
        return self._was_text(out)

    def _after_nak(self, out: list[str]) -> bool:
        rest = bytes(self._held[1 : _LONGEST + 2])
        if match := _ERROR.match(rest):
            message = (match[2] or b"").decode("utf-8", "replace")
            self.error = match[1].decode(), message
            del self._held[: match.end()]  # the EOT stays, as the first byte
            self._mode = "eot"
            return True
        word, space, _ = rest.partition(b" ")
        known = any(code.encode() == word if space else code.encode().startswith(word) for code in ERROR_CODES)
        if known and len(rest) <= _LONGEST and not _CONTROL.search(rest):
            return False
        return self._was_text(out)

    def _was_text(self, out: list[str]) -> bool:
        out.append(REPLACEMENT)
        del self._held[:1]
        self._mode = "text"
        return True
