{{/* Names, labels and the image. */}}

{{- define "chancery.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The common part of all names. A StatefulSet, a CronJob and a Service add a suffix, and their names have 52 characters at most. */}}
{{- define "chancery.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "chancery.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "chancery.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels of selectors, which never change. Takes {root, component}. */}}
{{- define "chancery.selector" -}}
app.kubernetes.io/name: {{ include "chancery.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* All labels. Takes {root, component}. */}}
{{- define "chancery.labels" -}}
{{ include "chancery.podLabels" . }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The labels of pods. The version of the chart is not among them, so that a new chart alone restarts nothing. Takes {root, component}. */}}
{{- define "chancery.podLabels" -}}
{{ include "chancery.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: chancery
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "chancery.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end -}}
{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "chancery.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "chancery.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The DNS names of a Service, as a list. Takes {root, name}. */}}
{{- define "chancery.hosts" -}}
{{- $namespace := .root.Release.Namespace -}}
- {{ .name | quote }}
- {{ printf "%s.%s" .name $namespace | quote }}
- {{ printf "%s.%s.svc" .name $namespace | quote }}
- {{ printf "%s.%s.svc.cluster.local" .name $namespace | quote }}
{{- end -}}

{{/* The address of the admin service, as commands take it. */}}
{{- define "chancery.adminServer" -}}
{{- if include "chancery.tlsSecret" (dict "root" . "port" "admin") }}https://{{ end -}}
{{ include "chancery.fullname" . }}-admin.{{ .Release.Namespace }}.svc:{{ .Values.service.admin.port }}
{{- end -}}
