package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
)

// topScreen shows the screen until a key or ctx ends it. That the server can be reached is seen first: what is wrong with
// an address or a token is told as by every command.
func (a *app) topScreen(ctx context.Context, interval time.Duration) error {
	if err := a.with(ctx, func(ctx context.Context, r *remote) error {
		_, err := r.sample(ctx)
		return err
	}); err != nil {
		return err
	}
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return fmt.Errorf("set up the terminal: %w; 'quire top --once' needs none", err)
	}
	defer screen.Fini()
	ctx, cancel := context.WithCancel(ctx)
	news := make(chan topNews)
	var sampler sync.WaitGroup
	sampler.Go(func() { a.watchTop(ctx, interval, news) })
	defer sampler.Wait()
	defer cancel()
	runTop(ctx, screen, newTopModel(a.server), news, a.now, a.getenv("NO_COLOR") == "")
	return nil
}

// runTop draws the model and feeds it until a key or ctx ends it.
func runTop(ctx context.Context, screen tcell.Screen, m *topModel, news <-chan topNews, now func() time.Time, colour bool) {
	clock := time.NewTicker(time.Second) // "no answer for 12s" goes on without news
	defer clock.Stop()
	m.now, m.ascii = now(), screen.CharacterSet() != "UTF-8"
	for {
		m.resize(screen.Size()) // not what events say: some terminals report it the wrong way round
		drawTop(screen, m.view(), colour)
		select {
		case n := <-news:
			m.learn(n, now())
		case <-clock.C:
			m.now = now()
		case ev, open := <-screen.EventQ():
			if !open {
				return
			}
			switch ev := ev.(type) {
			case *tcell.EventResize:
				screen.Sync()
			case *tcell.EventKey:
				if m.key(topKeyOf(ev)) {
					return
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

func topKeyOf(ev *tcell.EventKey) topKey {
	switch ev.Key() {
	case tcell.KeyEscape, tcell.KeyCtrlC:
		return pressQuit
	case tcell.KeyTab:
		return pressTable
	case tcell.KeyUp:
		return pressUp
	case tcell.KeyDown:
		return pressDown
	case tcell.KeyPgUp:
		return pressPageUp
	case tcell.KeyPgDn:
		return pressPageDown
	case tcell.KeyHome:
		return pressHome
	case tcell.KeyEnd:
		return pressEnd
	case tcell.KeyRune:
		if k, ok := topLetters()[ev.Str()]; ok {
			return k
		}
	}
	return pressOther
}

func topLetters() map[string]topKey {
	return map[string]topKey{
		"q": pressQuit, "?": pressHelp, "h": pressHelp, "p": pressPause, " ": pressPause, "s": pressSort, "S": pressSortBack, "r": pressReverse,
		"j": pressDown, "k": pressUp, "1": pressTable1, "2": pressTable2, "3": pressTable3,
	}
}

// drawTop puts lines on the screen.
func drawTop(screen tcell.Screen, lines []topLine, colour bool) {
	screen.Clear()
	for y, l := range lines {
		x := 0
		for _, s := range l {
			style := tcellStyle(s.style, colour)
			for rest := s.text; rest != ""; {
				next, wide := screen.Put(x, y, rest, style)
				if wide == 0 { // beyond the screen, which is smaller than the model knows yet
					break
				}
				rest, x = next, x+wide
			}
		}
	}
	screen.Show()
}

func tcellStyle(s topStyle, colour bool) tcell.Style {
	style := tcell.StyleDefault
	switch s {
	case topDim:
		return style.Dim(true)
	case topHead:
		return style.Bold(true)
	case topBad:
		style = style.Bold(true)
	}
	if colour {
		switch s {
		case topGood:
			return style.Foreground(color.Green)
		case topWarn:
			return style.Foreground(color.Yellow)
		case topBad:
			return style.Foreground(color.Red)
		}
	}
	return style
}
