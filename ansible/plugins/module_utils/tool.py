# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Start torchtune-sys on the host and read its answer.

The answer is one JSON document on standard output. Whatever else stands there (a login banner, a wrapper's words, half a
document) is a failure that says so: no verdict is ever read out of it. The tool's exit status is told as ``status``, never
as ``rc``, which Ansible would take for the task's own.
"""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

import json
import os
import re

from ansible.module_utils.common.text.converters import to_native, to_text
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.torchtune.sys.plugins.module_utils import options, places, signs

NAME = "torchtune-sys"
PLACES = ("/usr/local/bin", "/opt/torchtune-sys/bin")
SHOWN = 300
LEFT_OUT = "(a line that may hold a secret)"

TOOL = dict(
    path=dict(type="path", default=NAME),
    interpreter=dict(type="path"),
)
RULES = dict(rules=dict(type="dict"))


class Unanswered(Exception):
    """The tool did not answer with the document that was asked for."""

    def __init__(self, why, msg, status=None):
        super(Unanswered, self).__init__(msg)
        self.why = why
        self.msg = msg
        self.status = status


class Answer(object):
    """A document, the exit status that came with it, and what was said on standard error."""

    def __init__(self, document, status, said):
        self.document = document
        self.status = status
        self.said = said

    @property
    def version(self):
        return (self.document.get("tool") or {}).get("version", "")


class Tool(object):
    """The tool on this host, as the task names it."""

    def __init__(self, module):
        self.module = module
        self.argv = self._argv()

    def ask(self, words, schema, statuses):
        """Return the Answer to one command. Raises Unanswered."""
        status, out, err = self._run(self.argv + list(words))
        if not out.strip():
            raise self._silent(status, err)
        document = parse(out, schema, self.argv[-1])
        if status not in statuses:
            raise Unanswered("internal", "%s ended with status %s: %s" % (self.argv[-1], status, last_words(err)), status)
        return Answer(document, status, err)

    def say(self, words):
        """Return what a command said whose answer is no JSON. Raises Unanswered where it did not end well."""
        status, out, err = self._run(self.argv + list(words))
        if status:
            raise self._silent(status, err)
        return shown(out)

    def _run(self, argv):
        try:
            return self.module.run_command(argv, handle_exceptions=False)
        except (OSError, IOError) as error:
            why = "%s cannot be started: %s" % (argv[0], error.strerror or to_native(error))
            raise Unanswered("cannot-start", why)

    def _argv(self):
        """Raises Unanswered."""
        path, interpreter = self.module.params["path"], self.module.params["interpreter"]
        if os.path.sep in path:
            found = path if os.path.isfile(path) else None
        else:
            found = self.module.get_bin_path(path, opt_dirs=list(PLACES))
        if found is None:
            where = path if os.path.sep in path else "%s (PATH, %s)" % (path, ", ".join(PLACES))
            puts = "the role's tasks_from tool puts it there" + (", though not in check mode" if self.module.check_mode else "")
            raise Unanswered("not-installed", "there is no %s on this host: %s" % (where, puts))
        for place in [found] + ([interpreter] if interpreter and os.path.sep in interpreter else []):
            reason = places.distrust(place)
            if reason:
                raise Unanswered("not-trusted", "%s is not started as root: %s" % (place, reason))
        return [interpreter, found] if interpreter else [found]

    def _silent(self, status, err):
        """The failure of a command that wrote no document."""
        if status == 2:
            old = "no such option" in err.lower() or "no such command" in err.lower()
            hint = " (the tool on this host is older than the collection: tasks_from tool renews it)" if old else ""
            return Unanswered("refused", last_words(err) + hint, status)
        if status < 0 or status > 128:
            number = -status if status < 0 else status - 128
            return Unanswered("killed", "%s was ended by signal %d" % (self.argv[-1], number), status)
        if status in (126, 127):
            return Unanswered("cannot-start", "%s cannot be started: %s" % (self.argv[-1], last_words(err)), status)
        told = last_words(err) or "and said nothing"
        return Unanswered("no-answer", "%s ended with status %d: %s" % (self.argv[-1], status, told), status)


def parse(out, schema, name):
    """Return the document that ``out`` is, whole and of this schema. Raises Unanswered."""
    text = to_text(out, errors="surrogate_or_replace").strip()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Unanswered("garbage", _garbage(text, name, to_native(error)))
    if not isinstance(document, dict) or document.get("schema") != schema:
        seen = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise Unanswered("garbage", "%s wrote JSON that is no %s (%s)" % (name, schema, seen))
    return document


def _garbage(text, name, why):
    start = text.find('{"schema"') if '{"schema"' in text else text.find("{\n")
    if start > 0:
        words = "%s wrote something before its JSON (a banner, a wrapper?), so nothing of it is believed: %s"
        return words % (name, shown(text[:start]))
    if start == 0:
        return "%s wrote JSON that is cut short or followed by something else (%s): … %s" % (name, why, shown(text[-SHOWN:]))
    return "%s wrote no JSON: %s" % (name, shown(text))


def shown(text):
    """What may stand in a message: the beginning, on one line."""
    words = " ".join(without_secrets(to_native(text, errors="surrogate_or_replace")).split())
    return words if len(words) <= SHOWN else words[:SHOWN] + " ..."


def without_secrets(text):
    """Leave out the lines that may hold a secret: of a banner, a wrapper, a shell. The tool's own went through its filter."""
    lines, is_own = [], False
    for line in text.partition("-----BEGIN")[0].splitlines():
        is_own = line.startswith((NAME + ":", "Error:")) or (is_own and line.startswith("  "))
        if not is_own and (any(sign in line.lower() for sign in signs.SIGNS) or any(map(_mixed, LONG.findall(line)))):
            line = LEFT_OUT
        if line != LEFT_OUT or lines[-1:] != [LEFT_OUT]:
            lines.append(line)
    return "\n".join(lines)


LONG = re.compile("[A-Za-z0-9+/]{20,}")


def _mixed(word):
    """Whether it has letters of both cases and digits, as words that are drawn by chance have."""
    return all(re.search(kind, word) for kind in ("[a-z]", "[A-Z]", "[0-9]"))


def last_words(err):
    """What the tool said itself; of other noise on standard error the end."""
    lines = [line.strip() for line in without_secrets(to_native(err, errors="surrogate_or_replace")).splitlines() if line.strip()]
    own = [number for number, line in enumerate(lines) if line.startswith((NAME + ":", "Error:"))]
    return "; ".join(lines[own[-1] :] if own else lines[-3:])


def words_of(table, params):
    """The command line for these options: ``table`` says which flag each has (module_utils/options.py)."""
    words = []
    for name in sorted(table):
        value = params.get(name)
        if value is None or value is False:
            continue
        if value is True:
            words.append(table[name])
        elif isinstance(value, list):
            for item in value:
                words += [table[name], to_native(item)]
        else:
            words += [table[name], to_native(value)]
    return words


def rule_words(module):
    """The command line for ``rules``: what is false is ignored, parameters go by a configuration file of this task's own."""
    rules = module.params["rules"] or {}
    words, tables = [], []
    for name in sorted(rules):
        setting = rules[name]
        if isinstance(setting, dict):
            lines = ["%s = %s" % (json.dumps(key), json.dumps(setting[key])) for key in sorted(setting)]
            tables.append("\n".join(["[rules.%s]" % json.dumps(name)] + lines))
            continue
        try:
            asked = setting is None or boolean(setting)
        except TypeError:
            module.fail_json(msg="rules: %s is true, false or a dictionary of its parameters, not %s" % (name, setting))
        if not asked:
            words += ["--ignore", name]
    if tables:
        words += ["--config", _written(module, "\n".join(tables) + "\n")]
    return words


def _written(module, text):
    if module.params.get("config"):
        module.fail_json(msg="parameters of rules are given twice: in config and in rules; put them into one of both")
    place = os.path.join(module.tmpdir, "torchtune-sys-rules.toml")
    with open(place, "wb") as file:
        file.write(text.encode("utf-8"))
    return place


def judging_words(module):
    """What every command that judges the host is given."""
    words = words_of(options.WORKLOAD, module.params) + words_of(options.SELECTION, module.params)
    return words + rule_words(module)


def judging_spec(**more):
    """Argument spec of the modules that judge the host."""
    spec = {}
    for part in (TOOL, RULES, options.WORKLOAD_SPEC, options.SELECTION_SPEC, more):
        spec.update(part)
    return spec


def identity():
    """Which host this is, and which of its starts: the controller compares it with its own."""
    return " ".join(_word(path) or "-" for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"))


def _word(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except (IOError, OSError):
        return ""


def answer(module, words, schema, statuses):
    """Return the Answer to one command; without one the task fails and says why."""
    try:
        return Tool(module).ask(words, schema, statuses)
    except Unanswered as error:
        fail(module, error)


def document_of(module, place, schema):
    """The document that the tool wrote into a file; without one the task fails and says why."""
    try:
        with open(place, "rb") as file:
            return parse(file.read(), schema, place)
    except (IOError, OSError) as error:
        fail(module, Unanswered("no-answer", "%s cannot be read: %s" % (place, error.strerror)))
    except Unanswered as error:
        fail(module, error)


def fail(module, error, **more):
    """End the task because the tool did not answer."""
    module.fail_json(msg=error.msg, why=error.why, status=error.status, changed=False, **more)
