"""A DNS server for SRV records of one name, over UDP on a port that the system assigned."""

import socket
import threading

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

NAME = "_http._tcp.engines.test."


class DnsServer:
    """Answers SRV questions over UDP, with what it is told to; silent where that is None."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.records: list[str] | None = []
        self.ttl_s = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, client = self._socket.recvfrom(4096)
            if not data:
                return
            answer = dns.message.make_response(dns.message.from_wire(data))
            if self.records is None:
                answer.set_rcode(dns.rcode.SERVFAIL)
            elif self.records:
                answer.answer.append(dns.rrset.from_text(NAME, self.ttl_s, "IN", "SRV", *self.records))
            answer.flags |= dns.flags.RA
            self._socket.sendto(answer.to_wire(), client)
