"""A page in a headless Chromium, as a test looks at it: what is drawn, what went wrong.

    with browser.Page("report.html") as page:
        page.evaluate("document.title")
        page.hover("svg.chart", 0.5, 0.5)
        page.screenshot("report.png")
        page.faults    # script errors, messages to the console, requests for anything but the page

Chromium is driven by its DevTools protocol over a pipe. Only Debian's package is needed.
"""

import atexit
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium")
SKIPPED = "SKIPPED: there is no Chromium (needs: chromium)"  # printed by a test without one
DEADLINE_SECONDS = 30
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)


class Browser:
    """The process. Its pages share it; it ends with the program."""

    shared = None

    @classmethod
    def get(cls):
        if cls.shared is None:
            cls.shared = cls()
            atexit.register(cls.shared.close)
        return cls.shared

    def __init__(self):
        self.pages = {}  # by their sessions
        self._answers = {}
        self._buffer = b""
        self._number = 0
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads descriptor 3 and writes 4, whatever the pipes' numbers are here.
        command = f"exec {CHROMIUM} \"$@\" 3<&{to_browser} 4>&{from_browser}"
        with open(f"{self._folder.name}/log", "wb") as log:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", command, "browser", *OPTIONS, "about:blank",
                 f"--user-data-dir={self._folder.name}/data"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(to_browser, from_browser),
                env={**os.environ, "HOME": self._folder.name, "TMPDIR": self._folder.name})
        os.close(to_browser)
        os.close(from_browser)

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def call(self, method, session=None, **parameters):
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self.wait_for(lambda: number in self._answers)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait_for(self, condition):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            readable, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._in, 1 << 16) if readable else b""
            if not data:
                log = pathlib.Path(f"{self._folder.name}/log").read_text(errors="replace")
                raise AssertionError(f"Chromium does not answer: {log[-2000:]}")
            *messages, self._buffer = (self._buffer + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]] = message
                elif message.get("sessionId") in self.pages:
                    self.pages[message["sessionId"]].take(message["method"], message["params"])


class Page:
    """Opens the page, loaded when the constructor returns."""

    def __init__(self, path, width=1200, height=900, dark=False):
        self.faults = []
        self._url = pathlib.Path(path).resolve().as_uri()
        self._loaded = False
        self._browser = Browser.get()
        self._target = self._browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._browser.call("Target.attachToTarget", targetId=self._target,
                                           flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._resize(width, height)
        self._call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._browser.pages[self._session] = self
        self._call("Page.navigate", url=self._url)
        self._browser.wait_for(lambda: self._loaded)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._browser.pages.pop(self._session, None):
            self._browser.call("Target.closeTarget", targetId=self._target)

    def evaluate(self, expression):
        """The value of a JavaScript expression, as JSON has it."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True,
                            awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def count(self, selector):
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def text(self, selector="body"):
        """What a reader sees of the first such element."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def hover(self, selector, x=0.5, y=0.5):
        """Moves the mouse to that share of the element's width and height."""
        self._mouse("mouseMoved", self._place(selector, x, y))

    def click(self, selector):
        place = self._place(selector, 0.5, 0.5)
        self._mouse("mousePressed", place, button="left", clickCount=1)
        self._mouse("mouseReleased", place, button="left", clickCount=1)

    def overflow(self, width):
        """By how many pixels the page is wider than a screen of that width."""
        self._resize(width, 800)
        return self.evaluate(f"document.documentElement.scrollWidth - {width}")

    def screenshot(self, path):
        image = self._call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(image))

    def _resize(self, width, height):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=False)

    def _place(self, selector, x, y):
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()")
        return {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}

    def _mouse(self, kind, place, **others):
        self._call("Input.dispatchMouseEvent", type=kind, **place, **others)

    def _call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def take(self, method, parameters):
        """Notes what the browser says of this page."""
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.faults.append(str(parameters["exceptionDetails"]))
        elif method in ("Runtime.consoleAPICalled", "Log.entryAdded"):
            self.faults.append(str(parameters))
        elif method == "Network.requestWillBeSent" and parameters["request"]["url"] != self._url:
            self.faults.append(f"request: {parameters['request']['url']}")
