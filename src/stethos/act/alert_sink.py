"""How a message leaves: by webhook, mail, command, or into a file."""

from __future__ import annotations

import json
import os
import re
import smtplib
import ssl
import subprocess
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from stethos.act.alert_rule import CommandSink, LogSink, MailSink, Sink, WebhookSink
from stethos.act.webhook import DeliveryError, post, secret_in

_DISCORD_MARKUP = re.compile(r"[\\`*_~|<>\[\]()#]")
_MOST_ITEMS = 20
_MOST_CLIENTS = 100  # of an item; its title says how many there are
_COLOURS = {"error": 0xC0392B, "warning": 0xD68910, "info": 0x2874A6, "over": 0x1E8449}


@dataclass(frozen=True, slots=True)
class AlertItem:
    """One thing to tell: `key` stays the same while it lasts; `state` is new, again or over."""

    key: str
    rule: str
    state: str
    severity: str
    title: str
    next_step: str = ""
    clients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """What a sink gets at once: all items of a run that came up together."""

    run: str
    items: tuple[AlertItem, ...]

    @property
    def subject(self) -> str:
        first = self.items[0]
        more = f" and {len(self.items) - 1} more" if len(self.items) > 1 else ""
        mark = "over" if first.state == "over" else first.severity
        return f"[{mark}] {self.run}: {first.title}{more}"

    @property
    def text(self) -> str:
        lines = []
        for item in self.items[:_MOST_ITEMS]:
            mark = {"new": item.severity, "again": f"{item.severity}, still"}.get(item.state, "over")
            lines.append(f"{mark}: {item.title}")
            if item.next_step and item.state != "over":
                lines.append(f"    next: {item.next_step}")
        if len(self.items) > _MOST_ITEMS:
            lines.append(f"and {len(self.items) - _MOST_ITEMS} more")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        items = [
            {"rule": one.rule, "state": one.state, "severity": one.severity, "title": one.title,
             "next_step": one.next_step, "clients": list(one.clients[:_MOST_CLIENTS])}
            for one in self.items[:_MOST_ITEMS]
        ]  # fmt: skip
        return {"source": "stethos", "run": self.run, "subject": self.subject, "count": len(self.items), "items": items}


def deliver(sink: Sink, message: AlertMessage) -> None:
    """Send a message; DeliveryError if it did not arrive."""
    match sink:
        case WebhookSink():
            post(sink, _body(sink.format, message))
        case MailSink():
            _mail(sink, message)
        case CommandSink():
            _command(sink, message)
        case LogSink():
            _log(sink, message)


def _body(form: str, message: AlertMessage) -> dict[str, Any]:
    if form == "slack":
        return {"text": f"*{_slack(message.subject)}*\n{_slack(message.text)}"}
    if form == "discord":
        first = message.items[0]
        colour = _COLOURS["over" if first.state == "over" else first.severity]
        embed = {
            "title": _discord(message.subject)[:256],
            "description": _discord(message.text)[:4000],
            "color": colour,
        }
        return {"embeds": [embed], "allowed_mentions": {"parse": []}}
    return message.as_dict()


def _slack(text: str) -> str:
    """Text as text: a client's name cannot mention people or make links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _discord(text: str) -> str:
    """Text as text: a client's name cannot make links or pictures."""
    return _DISCORD_MARKUP.sub(r"\\\g<0>", text)


def _mail(sink: MailSink, message: AlertMessage) -> None:
    mail = EmailMessage()
    mail["Subject"] = " ".join(message.subject.split())
    mail["From"], mail["To"] = sink.sender, ", ".join(sink.to)
    mail.set_content(message.text)
    try:
        with _server(sink) as server:
            if sink.user:
                server.login(sink.user, secret_in(sink.password_file))
            server.send_message(mail)
    except (OSError, smtplib.SMTPException) as error:
        raise DeliveryError(f"mail by {sink.host}:{sink.port}: {error}") from None


def _server(sink: MailSink) -> smtplib.SMTP:
    """A connection to the mail server; an encrypted one to the server that its certificate names, or none."""
    if sink.encryption == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(sink.host, sink.port, timeout=sink.timeout_s, context=context)
    server = smtplib.SMTP(sink.host, sink.port, timeout=sink.timeout_s)
    if sink.encryption == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except (OSError, smtplib.SMTPException):
            server.close()
            raise
    return server


def _command(sink: CommandSink, message: AlertMessage) -> None:
    try:
        result = subprocess.run(
            sink.command, input=json.dumps(message.as_dict()).encode(), timeout=sink.timeout_s, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DeliveryError(f"{sink.command[0]} took longer than {sink.timeout_s:g} s") from None
    except OSError as error:
        raise DeliveryError(f"{sink.command[0]}: {error}") from None
    if result.returncode:
        last = result.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise DeliveryError(f"{sink.command[0]} ended with {result.returncode}: {last[:200]}")


def _log(sink: LogSink, message: AlertMessage) -> None:
    line = json.dumps(message.as_dict(), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    try:
        file = os.open(Path(sink.path).expanduser(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(file, line) < len(line):
                raise DeliveryError(f"{sink.path}: the disk is full")
        finally:
            os.close(file)
    except OSError as error:
        raise DeliveryError(f"{sink.path}: {error.strerror}") from None
